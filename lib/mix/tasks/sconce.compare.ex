defmodule Mix.Tasks.Sconce.Compare do
  alias Sconce.Switches
  alias Sconce.Trainer.Compare

  @schema [svg: [type: :path, doc: "File for the curves; without it none are drawn."]]

  @shortdoc "Shows training runs side by side"

  @moduledoc """
  Compares training runs: prints the options in which they differ and their
  results, and with `--svg` draws their curves into one file. See
  `Sconce.Trainer.Compare`.

      $ mix sconce.compare RUN... [--svg FILE]

  RUN is a folder made by `mix sconce.train --out`.

  #{Switches.docs(@schema)}
  """

  use Mix.Task

  @requirements ["app.config"]
  @usage "usage: mix sconce.compare RUN... [--svg FILE]"

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || compare(args)

  defp compare(args) do
    {svg, folders} = parse!(args)

    with {:ok, runs} <- Compare.load(folders), :ok <- draw(runs, svg) do
      Mix.shell().info(Compare.table(runs))
      if svg, do: Mix.shell().info("curves  #{svg}")
    else
      {:error, error} -> Switches.fail!(error, @schema)
    end
  end

  defp draw(_runs, nil), do: :ok
  defp draw(runs, svg), do: Compare.write(runs, svg)

  defp parse!(args) do
    case Switches.parse!(args, @schema) do
      {_opts, []} -> Mix.raise(@usage)
      {opts, folders} -> {opts[:svg], folders}
    end
  rescue
    error in ArgumentError -> Mix.raise("#{Exception.message(error)}\n#{@usage}")
  end
end
