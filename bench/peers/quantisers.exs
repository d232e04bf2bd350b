# The part of Sconce in quantisers.py, which calls it:
#
#     mix run peers/quantisers.exs policies DIR    # trains an MLP and a GRU, rounds them in each way, writes checkpoints
#     mix run peers/quantisers.exs logits DIR      # writes the logits of each checkpoint on a game of `validation`
#
# The policies imitate the games of the folder `train` of SCONCE_REPLAYS for a few steps.

defmodule Quantisers do
  alias Sconce.{Compress, Corpus, Policy, Trainer}

  @policies [
    mlp: [backbone: :mlp, hidden_sizes: [512, 512], window_size: 30],
    gru: [backbone: :gru, hidden_size: 256, num_layers: 2, window_size: 30]
  ]
  @forms [
    {"int8-row", [bits: 8]},
    {"int4-32", [bits: 4, group: 32]},
    {"int4-128", [bits: 4, group: 128]}
  ]
  @ways [{"nearest", []}, {"search", [scale: :search]}] ++
          [{"gptq", [calibration: true]}, {"gptq-search", [scale: :search, calibration: true]}]

  def main(["logits", dir]) do
    {:ok, game} = "validation" |> corpus!(dir) |> Corpus.recording(0)
    frames = game |> Enum.slice(600, 1200) |> Enum.map(&elem(&1, 0))

    for path <- Path.wildcard(Path.join(dir, "*.safetensors")) do
      {:ok, policy} = Policy.load(path)
      {:ok, out} = Policy.forward(policy, [frames])
      File.write!(path <> ".logits", out.logits)
    end
  end

  def main(["policies", dir]) do
    File.mkdir_p!(dir)
    train = corpus!("train", dir)

    for {name, own} <- @policies do
      policy = policy!(name, own, train, dir)

      for {form, coding} <- @forms, {way, more} <- @ways do
        opts = if more[:calibration], do: Keyword.put(more, :calibration, train), else: more
        {:ok, small} = Compress.Policy.quantise(policy, coding ++ opts)
        :ok = Policy.save(small.policy, Path.join(dir, "#{name}.#{form}.#{way}.safetensors"))
      end
    end
  end

  defp policy!(name, own, corpus, dir) do
    out = Path.join(dir, "#{name}-run")
    opts = [corpus: corpus, out: out, steps: 120, seed: 1, threads: 2, evaluate: false]
    {:ok, run} = Trainer.start_link(own ++ opts)
    {:ok, _report} = Trainer.await(run, :infinity)
    {:ok, policy} = Policy.load(Path.join(out, "last.safetensors"))
    :ok = Policy.save(policy, Path.join(dir, "#{name}.safetensors"))
    policy
  end

  defp corpus!(part, dir) do
    into = Path.join(dir, part)
    replays = Path.join(System.fetch_env!("SCONCE_REPLAYS"), part)
    unless File.exists?(into), do: {:ok, _corpus} = Corpus.import(replays, into: into)
    {:ok, corpus} = Corpus.open(into)
    corpus
  end
end

Quantisers.main(System.argv())
