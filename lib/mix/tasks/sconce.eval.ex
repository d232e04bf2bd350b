defmodule Mix.Tasks.Sconce.Eval do
  alias Sconce.{Switches, Trainer}
  alias Sconce.Trainer.{Catalogue, Progress, Report}

  @shortdoc "Scores a checkpoint on a corpus"

  @own [corpus: [type: :path, doc: "Folder of the corpus to score on, required."]]
  @schema @own ++ Keyword.drop(Catalogue.schema(:evaluate), [:progress])

  @moduledoc """
  Scores a checkpoint on every game of a corpus and prints the report.

  The report has the plain NLL and the accuracy of each head and the precision and
  recall of each button, on all frames and on those whose action changed. With
  `--train` the report also has baselines, fitted on the games of that corpus.

      $ mix sconce.eval run/best.safetensors --corpus games --train corpus

  #{Switches.docs(@schema)}
  """

  use Mix.Task

  @requirements ["app.config"]

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || score(args)

  defp score(args) do
    case evaluate(args) do
      {:ok, report} -> Mix.shell().info(Report.format(report))
      {:error, error} -> Switches.fail!(error, @schema)
    end
  end

  defp evaluate(args) do
    {opts, rest} = Switches.parse!(args, @schema)
    {corpus, opts} = Keyword.pop(opts, :corpus)
    corpus || raise ArgumentError, "--corpus is required"
    Trainer.evaluate(checkpoint!(rest), corpus, Keyword.put(opts, :progress, Progress.printer()))
  rescue
    error in ArgumentError -> Switches.fail!(error, @schema)
  end

  defp checkpoint!([checkpoint]), do: checkpoint
  defp checkpoint!([]), do: raise(ArgumentError, "which checkpoint? mix sconce.eval CHECKPOINT")
  defp checkpoint!([_first, second | _]), do: raise(ArgumentError, "unknown argument #{second}")
end
