# `Nx.Serving.batched_run/2` of Nx 0.9 needs Elixir 1.15.
exclude = if function_exported?(Process, :monitor, 2), do: [], else: [:batched_run]

# Without a usable card, or with a library that cannot make tensors there, the tests of a card are skipped.
gpu =
  if not is_integer(Sconce.Native.probe_block_count()),
    do: [:gpu],
    else: Sconce.GPU.exunit_exclude()

ExUnit.start(exclude: exclude ++ gpu, assert_receive_timeout: 5_000)
