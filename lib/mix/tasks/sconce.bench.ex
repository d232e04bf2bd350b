defmodule Mix.Tasks.Sconce.Bench do
  alias Sconce.Bench.{Case, Cases, Machine, Output}
  alias Sconce.Switches

  @schema [
    only: [type: :string, doc: "A regular expression: cases whose name and text match."],
    threads: [
      type: :pos_integer,
      doc: "What stands beside one thread, all processors by default."
    ],
    budget: [type: :float, min: 0, default: 2.0, doc: "Seconds that a case is measured."],
    json: [type: :path, doc: "A file that gets one object a line as well."]
  ]

  @shortdoc "Measures Sconce on this machine, beside what the machine could do"

  @moduledoc """
  Measures calls, frames, decisions, training steps and imports, and prints a line for each as it is
  measured.

      $ mix bench
      $ mix bench --only "act gru" --budget 5 --json bench/results.json

  #{Switches.docs(@schema)}

  | column | meaning |
  |---|---|
  | `name`, `case` | what is measured |
  | `batch`, `threads` | windows, frames or calls at once; threads that compute |
  | `median_us`, `p95_us`, `n` | of n samples; calls below 20 us are timed in groups |
  | `limit_us`, `limit` | what it would take at best, and why: bytes over the measured bandwidth, products over the measured peak, or a call that does nothing |

  Every case checks what it computed. One that fails says FAILED, and then the exit status is 1. With
  `SCONCE_REPLAYS` set, the games of that folder are imported too.

  Times of other work on the machine are in the figures: only ratios to rows of the same run mean
  anything on one that is shared.
  """

  use Mix.Task

  @usage "usage: mix bench [--only REGEX] [--threads N] [--budget SECONDS] [--json FILE]"

  @impl true
  def run(args) do
    opts = parse!(args)
    Mix.Task.run("app.config")
    with {:error, reason} <- Sconce.Native.status(), do: Mix.raise("no native library: #{reason}")

    cases = opts |> Keyword.get_lazy(:threads, &Machine.cores/0) |> Cases.all() |> only!(opts)
    writable!(opts[:json])
    machine = Machine.describe()
    say = &Mix.shell().info/1
    say.(Output.header(machine))
    say.(Output.titles())
    rows = for bench <- cases, do: bench |> Case.row(opts[:budget]) |> tap(&say.(Output.row(&1)))

    unless System.get_env("SCONCE_REPLAYS"),
      do: say.("\nSCONCE_REPLAYS is not set: no real games were imported.")

    write(rows, machine, opts[:json])
    finish(Enum.reject(rows, & &1.ok), length(rows))
  end

  defp parse!(args) do
    case Switches.parse!(args, @schema) do
      {opts, []} -> Keyword.put_new(opts, :budget, @schema[:budget][:default])
      {_opts, [argument | _]} -> raise ArgumentError, "unknown argument #{argument}"
    end
  rescue
    error in ArgumentError -> Mix.raise("#{Exception.message(error)}\n#{@usage}")
  end

  # Minutes of measuring are not to be lost at their end.
  defp writable!(nil), do: :ok

  defp writable!(path) do
    with {:error, reason} <- File.write(path, "", [:append]),
         do: Mix.raise("--json: #{path}: #{:file.format_error(reason)}")
  end

  # A run that measures nothing is a mistake, not a success.
  defp only!(cases, opts) do
    with source when is_binary(source) <- opts[:only],
         {:ok, regex} <- Regex.compile(source),
         [] <- Enum.filter(cases, &(Case.title(&1) =~ regex)) do
      Mix.raise(
        "no case matches #{source}; there are\n  " <> Enum.map_join(cases, "\n  ", &Case.title/1)
      )
    else
      nil -> cases
      [_ | _] = matching -> matching
      {:error, {reason, at}} -> Mix.raise("--only: #{reason} at #{at}")
    end
  end

  defp write(_rows, _machine, nil), do: :ok

  defp write(rows, machine, path) do
    File.write!(path, Enum.map(rows, &[Output.json_line(&1, machine), ?\n]))
  end

  defp finish([], _count), do: :ok

  defp finish(failed, count) do
    Mix.shell().error("#{length(failed)} of #{count} cases FAILED")
    exit({:shutdown, 1})
  end
end
