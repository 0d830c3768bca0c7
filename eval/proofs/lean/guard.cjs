// Loaded before Lean's own JavaScript, which asks Node for these constants in a way that the
// permission model refuses.
const { constants } = require("node:fs");
process.binding = (name) => {
  if (name === "constants") return { fs: constants };
  throw new Error(`no binding ${name}`);
};
