raise RuntimeError("safetensors must not be imported by a bare import")
