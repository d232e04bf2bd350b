# Trains policies that were imported from ExPhil on real games, and scores them before and after.
#
#     SCONCE_REPLAYS=replays mix run learning/adopt.exs | tee learning/adopt.txt       # two minutes on two cores
#
# The policies are those of `test/golden/exphil`, whose weights are random. Each starts a run of 300 steps on `replays/train`,
# of which a third of the windows comes from a second corpus (`mix:`), with a warm-up of the rate. `before` and `after` are the
# plain NLL in nats a frame on `replays/validation`, read in windows of 20 frames as ExPhil reads them.
#
# The status is 1 if a policy is no better after its run.

defmodule Adopt do
  alias Sconce.{Corpus, Policy, Trainer}

  @golden Path.expand("../../test/golden/exphil", __DIR__)
  @policies ~w(mlp_small gru lstm mamba attention jamba)
  @window 20
  @run [
    steps: 300,
    batch_size: 32,
    window_size: @window,
    learning_rate: 1.0e-3,
    warmup_steps: 50,
    loss: :plain,
    evaluate: false,
    validation_stride: 500,
    seed: 1
  ]

  def main do
    replays = System.get_env("SCONCE_REPLAYS") || raise "SCONCE_REPLAYS names no folder"
    dir = Path.join(System.tmp_dir!(), "sconce-adopt-#{System.pid()}")

    try do
      games = Path.wildcard(Path.join(replays, "train/**/*.slp")) |> Enum.sort()
      {some, others} = Enum.split(games, div(2 * length(games), 3))

      corpora =
        for {name, files} <- [one: some, two: others],
            do: corpus(files, Path.join(dir, "#{name}"))

      validation = corpus([Path.join(replays, "validation")], Path.join(dir, "validation"))
      IO.puts(line(~w(policy weights before after)))
      rows = for name <- @policies, do: trained(name, corpora, validation, dir)
      if Enum.any?(rows, fn {before, later} -> later >= before end), do: System.halt(1)
    after
      File.rm_rf!(dir)
    end
  end

  defp corpus(files, into) do
    {:ok, _corpus} = Corpus.import(files, into: into)
    into
  end

  defp trained(name, [one, two], validation, dir) do
    {:ok, policy, _notes} = Policy.import(Path.join(@golden, "#{name}.bin"), from: :exphil)
    first = Path.join(dir, "#{name}.safetensors")
    {:ok, info} = Policy.info(policy)
    :ok = Policy.save(policy, first, notes: info.notes)
    out = Path.join(dir, "run-#{name}")
    options = [corpus: one, mix: [{two, 0.33}], validation: validation, policy: first, out: out]
    {:ok, run} = Trainer.start_link(options ++ @run)
    {:ok, _report} = Trainer.await(run)
    scores = for path <- [first, Path.join(out, "last.safetensors")], do: score(path, validation)
    [before, later] = scores
    IO.puts(line([name, policy.num_weights, before, later]))
    {before, later}
  end

  defp score(path, validation) do
    {:ok, report} = Trainer.evaluate(path, validation, mode: :window, window_size: @window)
    report.policy.nll
  end

  defp line(cells) do
    [name | numbers] = Enum.map(cells, &text/1)
    [String.pad_trailing(name, 12) | Enum.map(numbers, &String.pad_leading(&1, 10))]
  end

  defp text(x) when is_float(x), do: :erlang.float_to_binary(x, decimals: 3)
  defp text(other), do: to_string(other)
end

Adopt.main()
