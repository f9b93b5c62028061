// Lets the search work in a copy of the site that is opened from disk (file://), where browsers start no Worker:
// runs the worker's script in a hidden frame. The theme's offline plugin would load such a script from another
// host; it does not if one with "iframe-worker" in its name is configured (extra.polyfills in mkdocs.yml).
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = new URL(url, document.baseURI).href
      script.onload = () => {
        const waiting = this.waiting
        this.waiting = null
        for (const data of waiting) this.postMessage(data)
      }
      script.onerror = () => this.dispatchEvent(new ErrorEvent("error", { message: `${url} cannot be read` }))
      inside.document.body.appendChild(script)
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
