[inputs: ["mix.exs", "test/**/*.exs"]]
