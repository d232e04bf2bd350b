defmodule Sconce.Evolve.Run do
  alias Sconce.{Error, Native, Options, Run}
  alias Sconce.Evolve.Search

  @options [
    out: [type: :path, required: true, doc: "Folder of the run, which is created."],
    generations: [
      type: :pos_integer,
      required: true,
      max: 2 ** 53,
      doc: "Generations of the whole search, those before a resume included."
    ],
    save_seconds: [
      type: :float,
      default: 60.0,
      min: 0,
      max: 1.0e9,
      doc: "Seconds between saves of the state; the last one is at the end."
    ],
    progress: [
      type: {:or, [nil, {:fun, 1}]},
      default: nil,
      doc: "Function that the run calls with each event."
    ]
  ]

  @moduledoc """
  Runs a search for long: a process with events, saves and a stop, which `mix sconce.monitor` shows.

      iex> out = Path.join(System.tmp_dir!(), "sconce-evolve-\#{System.unique_integer([:positive])}")
      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> {:ok, search} = Sconce.Evolve.Search.new(spec, :cart_pole, source: :snes, batch: 16, seed: 1)
      iex> {:ok, run} = Sconce.Evolve.Run.start_link(search, out: out, generations: 5)
      iex> {:ok, report} = Sconce.Evolve.Run.await(run)
      iex> {report.stopped, report.progress.generation, report.progress.evaluations}
      {:done, 5, 80}
      iex> GenServer.stop(run)
      iex> File.ls!(out) |> Enum.sort()
      ["lock", "search.json", "strategy-0-a.safetensors"]

  A folder has one run at a time; the lock ends with the run, also with a killed one. A killed run goes on from its last save: create the search with the same options, call `Sconce.Evolve.Search.resume/2`,
  and start a run with the same folder. `mix sconce.evolve` does all of that.
  """

  @typedoc "The pid or the name of a run."
  @type run :: GenServer.server()

  @typedoc """
  The result of a run.

  | key | content |
  |---|---|
  | `progress` | `t:Sconce.Evolve.Search.progress/0`; decisions, additions and stages are those of this run |
  | `archive` | figures of `Sconce.Evolve.Archive.stats/1`, nil without an archive |
  | `wall_s`, `evaluations_per_second` | time and rate of this run |
  | `numbers_per_second` | evaluations times the numbers of a solution |
  | `stopped` | `:done`, or `:stopped` before the last generation |
  """
  @type report :: map

  @doc """
  Starts a run of a search. An invalid option raises `ArgumentError`; `await/2` returns other errors.

  #{Options.docs(@options)}

      iex> out = Path.join(System.tmp_dir!(), "sconce-evolve-\#{System.unique_integer([:positive])}")
      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> {:ok, search} = Sconce.Evolve.Search.new(spec, :cart_pole, source: :snes, batch: 16, seed: 1)
      iex> {:ok, run} = Sconce.Evolve.Run.start_link(search, out: out, generations: 1_000_000)
      iex> Sconce.Evolve.Run.subscribe(run)
      :ok
      iex> receive do
      ...>   {:sconce_evolve, ^run, %{event: :generation, steps: steps}} -> steps
      ...> end
      1000000
      iex> Sconce.Evolve.Run.stop(run)
      :ok
      iex> {:ok, report} = Sconce.Evolve.Run.await(run)
      iex> {report.stopped, Sconce.Evolve.Run.info(run).status}
      {:stopped, :done}
      iex> GenServer.stop(run)
      :ok
      iex> File.rm_rf!(out) != []
      true
  """
  @spec start_link(Search.t(), keyword) :: GenServer.on_start()
  def start_link(%Search{} = search, opts) do
    {name, opts} = opts |> Options.keyword!() |> Keyword.split([:name])
    if name[:name], do: Options.name!(name[:name])
    opts = Options.validate!(opts, @options)
    out = opts[:out] |> Options.path!() |> Path.expand()

    Run.start_link(
      %Run{
        settings: %{out: out, progress: opts[:progress], callback: nil},
        kind: "evolve",
        tag: :sconce_evolve,
        start: &begin(&1, search, out, opts),
        named: &%{&1 | event: :generation},
        complete: &complete/1,
        early: [:generation],
        shown: [:generation]
      },
      name
    )
  end

  defp begin(ref, search, out, opts) do
    options = %{generations: opts[:generations], save_seconds: opts[:save_seconds]}

    case File.mkdir_p(out) do
      :ok ->
        Native.search_start(search.ref, ref, out, options)

      {:error, reason} ->
        details = %{path: out, reason: to_string(:file.format_error(reason))}
        {:error, %Error{kind: :io, op: :evolve, details: details}}
    end
  end

  defp complete(report), do: %{report | stopped: stopped(report.stopped)}
  defp stopped("done"), do: :done
  defp stopped("stopped"), do: :stopped

  @doc """
  Waits for the result of a run. Any number of processes may wait. `start_link/2` has an example.

  | kind of error | cause |
  |---|---|
  | `:deadline` | no result after `timeout` milliseconds; the run continues |
  | `:cancelled` | the process is gone |
  | `:non_finite`, `:out_of_range` | a return or a measure is not finite or too large; the state before it is saved |
  | `:busy` | another run uses the folder |
  | `:io` | a state could not be saved |
  """
  @spec await(run, timeout) :: {:ok, report} | {:error, Error.t()}
  def await(run, timeout \\ :infinity), do: Run.await(run, timeout, :evolve)

  @doc """
  Sends the events of a run to the caller, as `{:sconce_evolve, pid, event}`. A `:generation` has `step`, `steps`,
  `evaluations`, `evaluations_per_second`, `best_return`, `mean_return`, `elites`, `coverage`, `qd_score` and `left_s`; at
  most five come a second, and the last one always. `start_link/2` has an example.
  """
  @spec subscribe(run) :: :ok | {:error, Error.t()}
  def subscribe(run), do: Run.subscribe(run, :evolve)

  @doc """
  Stops a run soon, with its state saved. A generation whose episodes are not over is dropped: a resumed run evaluates
  it anew, with the same result. On a card a generation that was launched is finished. `start_link/2` has an example.
  """
  @spec stop(run) :: :ok | {:error, Error.t()}
  def stop(run), do: Run.stop(run, :evolve)

  @doc """
  Returns the `status` of a run (`:running`, `:done` or `:failed`), its folder `out`, and its latest `generation`.
  `start_link/2` has an example.
  """
  @spec info(run) :: map | {:error, Error.t()}
  def info(run), do: Run.info(run, :evolve)

  @doc false
  def schema, do: @options
end
