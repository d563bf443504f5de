raise RuntimeError("torch must not be imported by a bare import")
