"""One process of a running system as one pure state machine: no event loop, clock, socket or file.

`core` is the machine: inputs go in, frames and messages come out. `inputs` has what can happen to a process, `outbox`
what gathers for one peer, `events` what a trace does not have yet, and `views/` how the set of members changes. `net`
drives it over real networks.
"""
