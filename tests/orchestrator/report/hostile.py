"""A text that attacks whatever shows it: closes scripts, steers terminals, turns directions, ends strings."""

HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\x1b[31m\u202ereversed&quot;\x00"
)
