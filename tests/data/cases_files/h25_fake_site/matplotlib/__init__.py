raise RuntimeError("matplotlib must not be imported by a bare import")
