defmodule Mix.Tasks.Sconce.Compress do
  alias Sconce.{Compress, Env, Options, Policy, Switches}
  alias Sconce.Compress.Catalogue
  alias Sconce.Env.Hosting

  @own [
    corpus: [
      type: :path,
      doc: "Folder of the corpus on which policies are scored, required unless a return is."
    ],
    within: [
      type: :string,
      default: "nll:1%",
      doc:
        "Largest loss: `nll:1%` allows an NLL that is 1 % above that of the checkpoint, `changed:2%` other likeliest " <>
          "actions on 2 % of the frames, `return:5%` a mean return in `:env` that is 5 % below."
    ],
    env: [
      type: :string,
      doc:
        "For `return`: an environment, or a module of the app that is a world; without it that of the checkpoint's notes."
    ]
  ]
  @schema @own ++
            Keyword.drop(Catalogue.schema(:search), [:progress, :within, :env, :calibration]) ++
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
      $ mix sconce.compress run/best.safetensors --out small --within return:5% \\
          --env cart_pole

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
         search = fn -> Compress.search(policy, corpus, opts) end,
         {:ok, found} <- Switches.checked!(@schema, search) do
      Mix.shell().info("\n#{found}")
    else
      {:error, error} -> Switches.fail!(error, @schema)
    end
  end

  defp parse!(args) do
    {opts, checkpoint} = Switches.parse_checkpoint!(args, @schema)
    checkpoint || raise ArgumentError, "which checkpoint? mix sconce.compress CHECKPOINT"
    {corpus, opts} = Keyword.pop(opts, :corpus)
    opts[:out] || raise ArgumentError, "--out is required"
    opts = opts |> Keyword.update(:within, {:nll, 0.01}, &within!/1) |> named()
    corpus!(corpus, opts[:within])
    {checkpoint, corpus, Keyword.put(opts, :progress, &Mix.shell().info/1)}
  rescue
    error in ArgumentError -> Switches.fail!(error, @schema)
  end

  defp corpus!(nil, {:return, _share}), do: :ok
  defp corpus!(nil, _within), do: raise(ArgumentError, "--corpus is required")

  defp corpus!(_corpus, {:return, _share}),
    do: raise(ArgumentError, "--corpus has no effect with --within return")

  defp corpus!(_corpus, _within), do: :ok

  # The environment as an atom, which may be a module of the app.
  defp named(opts) do
    case Keyword.pop(opts, :env) do
      {nil, opts} -> opts
      {text, opts} -> [env: Hosting.named(text) || native!(text)] ++ opts
    end
  end

  defp native!(text) do
    names = Map.new(Env.names(), &{to_string(&1), &1})
    Options.known!(text, Map.keys(names), "environment")
    names[text]
  end

  @measures %{"nll" => :nll, "changed" => :changed, "return" => :return}

  defp within!(text) do
    with [measure, number] <- String.split(text, ":"),
         {:ok, measure} <- Map.fetch(@measures, measure),
         {percent, "%"} when percent >= 0 <- Float.parse(number) do
      {measure, percent / 100}
    else
      _other ->
        raise ArgumentError,
              "--within: expected nll:PERCENT%, changed:PERCENT% or return:PERCENT%, as in nll:1%, got: #{text}"
    end
  end
end
