// Browsers start no worker from a file:// page, and the search box needs one. Here a hidden frame takes its place:
// the same script, the same messages, on the page's own thread. Pages from a server use real workers.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.body.appendChild(document.createElement("iframe"))
      frame.hidden = true
      this.view = frame.contentWindow
      this.view.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.view.document.createElement("script")
      this.ready = new Promise(resolve => script.addEventListener("load", resolve))
      script.src = url
      this.view.document.body.append(script)
    }

    postMessage(data) {
      this.ready.then(() => this.view.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
