# `Nx.Serving.batched_run/2` of Nx 0.9 needs Elixir 1.15.
exclude = if function_exported?(Process, :monitor, 2), do: [], else: [:batched_run]
ExUnit.start(exclude: exclude, assert_receive_timeout: 5_000)
