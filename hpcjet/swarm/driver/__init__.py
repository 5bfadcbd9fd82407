"""The side of the driver: it starts all parts of a training, sees what is lost, and starts it again elsewhere.

`nodes` says what came, drains and went; `plane` has the pools, caches, servers and the index on them, `seats` the world
hosts, `learning` the learners. Each looks again and again (`look`), and none waits for long. `turnover` moves them when
nodes change. `losses` times what was lost, `playing` has the greedy episodes, and `telling` writes all that a person
sees, with `rows` of what learners and hosts tell. `training` is the loop.
"""
