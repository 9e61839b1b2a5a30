// What is large lies in the page as gzip in base64, in elements that are no scripts, and is inflated when it is needed.
const canInflate = "DecompressionStream" in window;

async function unpacked(element) {
  const letters = atob(element.textContent), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) bytes[i] = letters.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
