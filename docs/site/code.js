// A browser may break a line after any hyphen, also inside --option. On a phone each short word of code stays whole.
for (const code of document.querySelectorAll(".md-typeset :not(pre) > code")) {
  const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) found.push(texts.currentNode);
  for (const text of found) {
    if (!text.data.includes("-")) continue;
    text.replaceWith(...text.data.split(/(\s+)/).map((word) => {
      if (!word.includes("-") || word.length > 30) return word;
      const whole = document.createElement("span");
      whole.style.whiteSpace = "nowrap";
      whole.textContent = word;
      return whole;
    }));
  }
}
