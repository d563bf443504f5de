"""The study: every figure of the article reproduced, extended, and explorable in a page."""
