"""The side of the driver: it starts all parts of a training, sees what is lost, and starts it again elsewhere.

`nodes` says what came, drains and went; `plane` has the pools, caches, servers and the index on them, `seats` the world
hosts, `ranks` the learners. Each looks again and again (`look`), and none waits for long. `losses` times what was lost,
`rows` joins what learners and hosts tell, `playing` has the greedy episodes, `training` is the loop over all of it.
"""
