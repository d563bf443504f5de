"""The presses of kvpress: what they are asked, and which tokens they kept."""
