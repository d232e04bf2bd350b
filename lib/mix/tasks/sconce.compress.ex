defmodule Mix.Tasks.Sconce.Compress do
  alias Sconce.{Compress, Policy, Switches}
  alias Sconce.Compress.Catalogue

  @own [
    corpus: [type: :path, doc: "Folder of the corpus on which policies are scored, required."],
    within: [
      type: :string,
      default: "nll:1%",
      doc: "Largest loss: `nll:1%` allows an NLL that is 1 % above that of the checkpoint."
    ]
  ]
  @schema @own ++
            Keyword.drop(Catalogue.schema(:search), [:progress, :within, :calibration]) ++
            [
              calibration: [
                type: :path,
                doc: "Folder of the corpus for GPTQ, such as that of the training."
              ]
            ]

  @shortdoc "Finds a smaller or faster form of a checkpoint"

  @moduledoc """
  Gives the matrices of a checkpoint 8 or 4 bits, as far as a bound on the loss
  allows, and prints the scored policies. See `Sconce.Compress.search/3`.

      $ mix sconce.compress run/best.safetensors --corpus validation --out small
      $ mix sconce.compress run/best.safetensors --corpus validation --out small \\
          --within nll:0.5% --for speed --calibration corpus

  The folder of `--out` gets `best.safetensors`, `report.txt` and `front.svg`. A
  task that was stopped goes on from its scores there.

  #{Switches.docs(@schema)}
  """

  use Mix.Task

  @requirements ["app.config"]

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || compress(args)

  defp compress(args) do
    {checkpoint, corpus, opts} = parse!(args)

    with {:ok, policy} <- Policy.load(checkpoint),
         {:ok, found} <- Compress.search(policy, corpus, opts) do
      Mix.shell().info("\n#{found}")
    else
      {:error, error} -> Switches.fail!(error, @schema)
    end
  end

  defp parse!(args) do
    {opts, checkpoint} = Switches.parse_checkpoint!(args, @schema)
    checkpoint || raise ArgumentError, "which checkpoint? mix sconce.compress CHECKPOINT"
    {corpus, opts} = Keyword.pop(opts, :corpus)
    corpus || raise ArgumentError, "--corpus is required"
    opts[:out] || raise ArgumentError, "--out is required"
    opts = Keyword.update(opts, :within, {:nll, 0.01}, &within!/1)
    {checkpoint, corpus, Keyword.put(opts, :progress, &Mix.shell().info/1)}
  rescue
    error in ArgumentError -> Switches.fail!(error, @schema)
  end

  defp within!(text) do
    with ["nll", number] <- String.split(text, ":"),
         {percent, "%"} when percent >= 0 <- Float.parse(number) do
      {:nll, percent / 100}
    else
      _other -> raise ArgumentError, "--within: expected nll:PERCENT%, as in nll:1%, got: #{text}"
    end
  end
end
