raise RuntimeError("pandas must not be imported by a bare import")
