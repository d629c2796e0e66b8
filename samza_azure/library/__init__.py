"""The coordination for programs of your own: job coordinators, shared tasks, elector, membership and locks."""
