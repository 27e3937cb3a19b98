// Rules for the JavaScript files of the repository. make lint-js installs the packages into .node-lint.
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
const require = createRequire(path.join(root, ".node-lint", "package.json"));
const javascript = require("@eslint/js");
const globals = require("globals");
const espree = require("espree");

// The console's page loads its files as classic scripts, so each file sees the top-level names of all others.
const page = path.join(root, "app/extensions/console/page");
const shared = {};
for (const name of readdirSync(page).filter((file) => file.endsWith(".js"))) {
  const source = readFileSync(path.join(page, name), "utf8");
  for (const statement of espree.parse(source, { ecmaVersion: "latest" }).body) {
    for (const declared of namesOf(statement)) {
      shared[declared] = statement.kind === "let" ? "writable" : "readonly";
    }
  }
}

function namesOf(node) {
  if (node === null) return [];
  switch (node.type) {
    case "VariableDeclaration":
      return node.declarations.flatMap((declarator) => namesOf(declarator.id));
    case "FunctionDeclaration":
    case "ClassDeclaration":
      return [node.id.name];
    case "ArrayPattern":
      return node.elements.flatMap(namesOf);
    case "ObjectPattern":
      return node.properties.flatMap((property) => namesOf(property.value));
    case "Identifier":
      return [node.name];
    default:
      return [];
  }
}

const rules = {
  ...javascript.configs.recommended.rules,
  eqeqeq: "error",
  "no-regex-spaces": "off",
  "prefer-const": "error",
};

export default [
  {
    files: ["app/extensions/console/page/*.js"],
    languageOptions: { sourceType: "script", globals: { ...globals.browser, ...shared } },
    rules: {
      ...rules,
      "no-redeclare": ["error", { builtinGlobals: false }],
      "no-unused-vars": ["error", { vars: "local" }],
      "prefer-const": "off", // another file may assign the variable
      "no-control-regex": "off", // the page removes control characters from texts
      "no-useless-escape": "off", // a saved page contains the scripts, so they must not end its script element
    },
  },
  {
    files: ["**/*.mjs", "clients/js/*.js"],
    languageOptions: { sourceType: "module", globals: globals.node },
    rules,
  },
];
