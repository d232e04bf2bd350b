defmodule Mix.Tasks.Bench.Quantise do
  alias Sconce.Bench.{Cases, Frames, Machine, Quantise}
  alias Sconce.{Corpus, Policy, Switches}

  @formats Cases.formats() -- [:f32]

  @schema [
    corpus: [
      type: :path,
      doc: "Folder of the corpus whose games are played; defaults to `SCONCE_REPLAYS`."
    ],
    games: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      doc: "Number of games; `nil` is all."
    ],
    weights: [
      type: {:list, {:in, @formats}},
      default: @formats,
      doc: "Formats to compare, of #{Enum.map_join(@formats, ", ", &"`#{&1}`")}."
    ],
    backbone: [
      type: {:in, Sconce.Temporal.backbones()},
      default: :gru,
      doc: "Backbone of the random policy that is used without a checkpoint."
    ]
  ]

  @shortdoc "Compares a policy's decisions with weights in fewer bits"

  @moduledoc """
  Plays whole games with the weights of a checkpoint in f32 and in other formats. Prints for each format how
  far the logits are from the f32 logits, and how many actions change.

      $ mix bench.quantise run/best.safetensors --corpus validation
      $ SCONCE_REPLAYS=replays mix bench quantise run/best.safetensors --weights bf16 --games 4

  #{Switches.docs(@schema)}

  | column | meaning |
  |---|---|
  | `weights`, `kept` | the requested format, and the actual one: a policy that is not packed stays in f32 |
  | `step, us` | time of a decision, measured when the session was opened |
  | `diff p50`, `p99`, `most` | the largest difference of a frame's logits, over the frames |
  | `of logits` | the largest absolute logit in f32 |
  | `changed %` | frames whose most likely action changes; then the same for each head |

  A list below the table names the matrices of each format with their largest error (the error of a matrix's
  worst output as a fraction of the output's weights), and the matrices that are kept in another format, as in
  `Sconce.Session`.

  Each format has its own memory, carried through the game. All formats see the same frames. Autoregressive
  heads get the f32 choices of the heads before them, so that a change counts only at the head where it
  occurs, not at later heads. Without a checkpoint a policy with random weights is used, which is not
  representative of a trained one.
  """

  use Mix.Task

  @requirements ["app.config"]

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || quantise(args)

  defp quantise(args) do
    {opts, checkpoint} = parse!(args)
    policy = policy!(checkpoint, opts)

    Frames.scratched(fn scratch ->
      corpus = corpus!(opts[:corpus], scratch)
      games = min(opts[:games] || corpus.info.games, corpus.info.games)
      say = &Mix.shell().info/1
      say.("#{origin(checkpoint)}: #{inspect(policy)}")
      say.("#{games} games of #{inspect(corpus)}\n")
      rows = Quantise.run(policy, corpus, opts[:weights], games: games)
      say.(Quantise.table(rows))
      say.("")
      for row <- rows, text = Quantise.matrices(row), do: say.(text)
    end)
  end

  defp parse!(args) do
    Switches.parse_checkpoint!(args, @schema)
  rescue
    error in ArgumentError -> error |> Switches.message(@schema) |> Mix.raise()
  end

  defp policy!(nil, opts), do: value!(Policy.init([backbone: opts[:backbone]], seed: 0))
  defp policy!(checkpoint, _opts), do: value!(Policy.load(checkpoint))

  defp origin(nil), do: "a policy with random weights"
  defp origin(checkpoint), do: checkpoint

  defp corpus!(nil, scratch) do
    replays =
      System.get_env("SCONCE_REPLAYS") || Mix.raise("--corpus or SCONCE_REPLAYS is required")

    into = Path.join(scratch, "corpus")
    value!(Corpus.import(replays, into: into, progress: false))
  end

  defp corpus!(dir, _scratch), do: value!(Corpus.open(dir))

  defp value!({:error, error}), do: error |> Switches.message(@schema) |> Mix.raise()
  defp value!(found), do: Machine.value!(found)
end
