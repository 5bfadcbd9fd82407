"""Multi-agent RL: many agents in many worlds, acted for and learned from in arrays.

**A vector of worlds** (`vector.WorldVector`) is how every environment is seen. W worlds are stepped together; agents
are arranged in groups that share a policy; a group has R rows in each world, and an agent stands in one of them.
`reset` and `step` give a `Turn`: for each group arrays [W, R, ...] of what to act on now and of what came of the last
actions.

- `observation`, `present`, `action_mask`: the rows that act now, and what they see. An agent that is not present
  pauses; nobody asks for its action. Rows of agents that have left may be taken by others that join.
- `reward`, `terminated`, `truncated`: what each row earned and whether the life in it ended, by itself or by a
  limit. Ends are of agents; a world is over when none of its agents lives, and `Turn.episodes` says so.
- A world begins its next episode in the step that ends the last one. So a turn may hold the end of one life and the
  first observation of another in the same row: the last observation of the first stands apart, in `final_rows` and
  `final_observation`. A truncated life without one cannot be bootstrapped from, and is not.
- A world that raises, hangs or breaks its contract is made anew; `Turn.faults` names it with agent and step.
- `state` is the global state for a central critic, where worlds have one (PettingZoo's `state()`); `final_state` is
  what it was when lives ended.
- Observations are flat float32, actions flat numbers, both by each agent's own space (`spaces`); masks are kept by
  agent.
- Arrays hold until the next call. Worlds are numbered over the whole run, and all seeds are derived from the run's
  seed, the world's number and the episode's, so that where a world runs changes nothing.

`formation.FormationVector` is one natively; `worlds` makes one of PettingZoo's and Gymnasium's environments.

**A fragment** (`fragment.Recorder`) holds T steps of a group, time-major. `Fragment.trajectories` joins it with the
values of its observations: what a paused agent earns goes to its last action, no step crosses from one life into
another, and steps whose outcome is not known are not learned from. `returns` makes advantages and targets of it,
`losses` (torch) what is minimised, `sampling` chooses what is learned from.

**Policies** (`policy`) act for groups, or single rows, as a `policy_map` says: `acting.Actor` asks each for all of its
agents at once. A backend is one module that makes policies and learners; `torch_backend` is the one there is. Learners
(`learning` holds what they share) do PPO or V-trace, alone or with other ranks (`learning.ranks`); the same seed gives
the same bits, also after a resume. `trainer.Trainer` acts and learns in one process.

**Over nodes**, `weights` brings new versions to those who act, `pool` keeps what they did where they did it and moves
what is chosen, and `staleness` says how far apart acting and learning may be. Each is a core without Ray and a module
`actors` around it. They are called in this order:

- The driver: `weights.actors.start_servers`, `pool.actors.start_index`; for each node `start_cache` and `start_pool`
  (central mode: one pool). A node that is lost: `index.node_lost(node)`; a host that died:
  `index.source_lost(source, attempt)`.
- A learner: `index.recover(version[, state, used])`, `Publisher.publish(version, weights)`; then again and again
  `index.sample(policy, n)` until it answers, `fetch`, `index.done(number, missing)`, `Learner.update`,
  `index.advance(version)` and only then `publish`. IndexIsNew asks for `recover`.
- A world host, for each fragment: `pool.begin(source, attempt, node, n, ticket, wait_s)` until it answers with a Leave,
  `cache.weights(source, version, None, leave.at_least, timeout)` and `load`, then the steps, then
  `pool.insert(entry_of(fragment, ...), fragment)` for each of the n.

Everything here is numpy alone when imported, but `losses` (torch); torch, Ray, Gymnasium and PettingZoo are imported
where they are used.
"""
