function element(tag, properties = {}) {
  return Object.assign(document.createElement(tag), properties);
}
