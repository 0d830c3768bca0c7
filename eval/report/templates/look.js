(() => {
  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const shown = text => "“" + text.replace(/\n/g, "⏎") + "”";
  for (const row of document.querySelectorAll(".look")) {
    const data = JSON.parse(row.querySelector("script[type='application/json']").textContent);
    const panels = [...row.querySelectorAll(".tokens")].map(box => [...box.querySelectorAll("i")]);
    const inspect = row.querySelector(".inspect"), select = inspect.querySelector("select");
    const names = [...inspect.querySelectorAll(".heads h3")].map(h => h.textContent);
    let at = -1;

    const heads = (model, body) => {
      const top = data.tops[model], application = select ? +select.value : 0;
      const sums = new Map();
      body.replaceChildren();
      body.closest("table").querySelector(".null").hidden = !top?.hasNull;
      if (!top) return sums;
      const { null: nulls, top: pairs } = top.sources[Math.min(application, top.sources.length - 1)];
      pairs.forEach((tokens, head) => {
        const line = document.createElement("tr"), cell = make("td", "", "text");
        line.append(Object.assign(make("th", head + 1), { scope: "row" }));
        if (top.hasNull) line.append(make("td", nulls[head][at] + "%"));
        for (let i = 0; i < tokens[at].length; i += 2) {
          const [place, share] = tokens[at].slice(i, i + 2);
          if (!share) continue;
          sums.set(place, (sums.get(place) || 0) + share / pairs.length);
          const back = data.start + at - place;
          cell.append(make("span", `${shown(data.texts[place])} ${share}%`, "source"),
            make("small", back ? `${back} back` : "itself"));
        }
        line.append(cell);
        body.append(line);
      });
      return sums;
    };

    const choose = index => {
      at = Math.max(0, Math.min(index, panels[0].length - 1));
      inspect.hidden = false;
      row.querySelectorAll(".at, .from").forEach(i => i.classList.remove("at", "from"));
      panels.forEach(tokens => tokens[at].classList.add("at"));
      const parts = names.map((name, m) => data.start + at === 0 ? `${name}: first token, not predicted`
        : `${name}: ${data.nll[m][at].toFixed(2)} nats, probability ${Math.exp(-data.nll[m][at]).toPrecision(2)}`);
      inspect.querySelector(".chosen").textContent =
        `${shown(data.texts[data.start + at])} at ${data.start + at}. ${parts.join("; ")}.`;
      inspect.querySelectorAll("tbody").forEach((body, model) => {
        for (const [place, share] of heads(model, body))
          if (share >= 5 && place >= data.start) panels[model][place - data.start].classList.add("from");
      });
    };

    panels.forEach(tokens => tokens.forEach((token, index) =>
      token.addEventListener("click", () => choose(index))));
    row.querySelectorAll(".tokens").forEach(box => box.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowDown: 10, ArrowLeft: -1, ArrowUp: -10 }[event.key];
      if (!step) return;
      event.preventDefault();
      choose(at + step);
    }));
    select?.addEventListener("change", () => choose(at));
  }
})();
