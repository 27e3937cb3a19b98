// The search treats a leading dash as "without this word": flags are found without their dashes.
document.addEventListener(
  "input",
  (event) => {
    const field = event.target;
    if (field instanceof HTMLInputElement && field.classList.contains("md-search__input")) {
      field.value = field.value.replace(/(^|\s)-+/g, "$1");
    }
  },
  true,
);
