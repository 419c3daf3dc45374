// Formulas arrive as \(...\) and \[...\] in elements of class "arithmatex"; nothing else is typeset.
window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]], processEscapes: true, processEnvironments: true },
  chtml: { scale: 0.98 },
  options: { ignoreHtmlClass: ".*|", processHtmlClass: "arithmatex" },
};
