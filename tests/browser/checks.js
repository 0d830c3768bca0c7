(() => {
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => {
      v /= 255;
      return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parse = text => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const visible = element => element.checkVisibility({ visibilityProperty: true })
    && !element.closest(".hidden, .skip") && element.getClientRects().length;
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const found = parse(getComputedStyle(at).backgroundColor);
      if (found[3] === 1) return found;
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  const poor = new Map();
  let checked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !visible(element) || ["SCRIPT", "STYLE", "TITLE", "title", "desc"].includes(element.tagName))
      continue;
    const style = getComputedStyle(element);
    const ink = parse(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const [one, two] = [luminance(ink), luminance(behind(element))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    checked += 1;
    if (ratio < 4.5) poor.set(`${element.tagName}.${element.getAttribute("class")}`, [ratio, text]);
  }
  const drawings = [...document.querySelectorAll("figure svg[role=img]")].filter(visible);
  const shapes = "polyline, rect.bar, g.dot";
  return {
    checked,
    poor: [...poor.entries()],
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    wide: [...document.querySelectorAll("main *")].filter(element =>
      visible(element) && !element.closest(".scroll, pre, .tokens, svg") &&
      element.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(element => element.outerHTML.slice(0, 80)),
    figures: document.querySelectorAll("figure.box:has(svg)").length,
    drawings: drawings.length,
    empty: drawings.filter(svg => ![...svg.querySelectorAll(shapes)].some(
      shape => { const box = shape.getBBox(); return box.width > 0 || box.height > 0; }))
      .map(svg => svg.querySelector("title").textContent),
    escaped: drawings.flatMap(svg => {
      const card = svg.closest("figure.box")?.getBoundingClientRect();
      return card ? [...svg.querySelectorAll("text")].filter(text => {
        const box = text.getBoundingClientRect();
        return box.width && (box.left < card.left + 1 || box.right > card.right - 1);
      }).map(text => `${svg.querySelector("title").textContent}: ${text.textContent}`) : [];
    }),
    sideways: [...document.querySelectorAll("table.standings")].filter(visible).filter(table =>
      table.parentElement.scrollWidth > table.parentElement.clientWidth + 1).length,
    headings: [...document.querySelectorAll("h1, h2, h3")].filter(visible).map(h => +h.tagName[1]),
    unnamed: [...document.querySelectorAll("a, button, input, [tabindex='0']")].filter(element =>
      visible(element) && !(element.textContent.trim() || element.getAttribute("aria-label")
        || element.labels?.length)).map(element => element.outerHTML.slice(0, 80)),
  };
})()
