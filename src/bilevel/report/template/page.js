// Draws each figure's chart from the JSON beside it, and ties its slider to the line under the pointer.
for (const figure of document.querySelectorAll("figure")) {
  const { spec, readouts } = JSON.parse(figure.querySelector("script").textContent);
  const slider = figure.querySelector("input"), output = figure.querySelector("output");
  const options = { mode: "vega-lite", renderer: "svg", actions: false, tooltip: { disableDefaultStyle: true } };
  slider.value = spec.params[0].value;
  vegaEmbed(figure.querySelector(".chart"), spec, options).then(({ view }) => {
    const show = () => {
      output.textContent = readouts[slider.value];
      slider.setAttribute("aria-valuetext", output.textContent);
      view.signal("place", Number(slider.value)).runAsync();
    };
    slider.addEventListener("input", show);
    view.addSignalListener("hovered", (_, { k }) => {
      if (k) {
        slider.value = k[0];
        show();
      }
    });
    show();
    figure.dataset.drawn = "yes";
  });
}
