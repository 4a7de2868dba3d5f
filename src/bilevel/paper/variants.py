"""The variants that every experiment of the paper is run in."""

VARIANTS = {
    "described": "as the paper describes it",
    "published": "as its public scripts have it",
    "published-other": "the scripts, other settings",
    "ours": "ours",
}
