"""What is solved: tasks, their data, like tasks stacked, and the three kinds of problem."""
