defmodule Sconce.Evolve.Progress do
  @moduledoc """
  Shows the events of a run of `Sconce.Evolve.Run` as text: in a terminal a live line, and elsewhere a line about every
  ten seconds.

      {:ok, run} = Sconce.Evolve.Run.start_link(search, out: "run", generations: 100)
      {:ok, report} = Sconce.Evolve.Progress.follow(run)
      IO.puts(Sconce.Evolve.Progress.summary(report))

  ```text
  generation 42/100  43,008 evaluations  31,204/s  mean 212.4  best 500.0  coverage 41.2 %  QD 401,220  eta 0:02
  ```
  """

  alias Sconce.{Figures, Options}
  alias Sconce.Run.Follow

  # Seconds between two lines without a terminal.
  @calm_s 10

  @options [
    terminal: [
      type: {:or, [:boolean, nil]},
      default: nil,
      doc: "Whether the output is a terminal; `nil` detects it."
    ],
    note: [type: {:or, [:string, nil]}, default: nil, doc: "A first line."]
  ]

  # `last` is the latest generation, unless its line was written.
  defstruct [:terminal, :note, :last, live: false, shown_ms: nil]

  @doc """
  Returns a new display. `write/2` has an example.

  #{Options.docs(@options)}
  """
  def new(opts \\ []) do
    [terminal: terminal, note: note] = Options.validate!(opts, @options)
    terminal = if terminal == nil, do: IO.ANSI.enabled?(), else: terminal
    %__MODULE__{terminal: terminal, note: note}
  end

  @doc """
  Subscribes to a run, writes its events to `:device` and returns the result of `Sconce.Evolve.Run.await/2`. Also
  accepts the options of `new/1`.

      iex> out = Path.join(System.tmp_dir!(), "sconce-evolve-\#{System.unique_integer([:positive])}")
      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> {:ok, search} = Sconce.Evolve.Search.new(spec, :cart_pole, source: :snes, batch: 16)
      iex> {:ok, run} = Sconce.Evolve.Run.start_link(search, out: out, generations: 3)
      iex> {:ok, device} = StringIO.open("")
      iex> {:ok, report} = Sconce.Evolve.Progress.follow(run, device: device, terminal: false)
      iex> {_input, text} = StringIO.contents(device)
      iex> {text =~ "generation 3/3", Sconce.Evolve.Progress.summary(report) =~ "done after 3 generations"}
      {true, true}
      iex> GenServer.stop(run)
      :ok
      iex> File.rm_rf!(out) != []
      true
  """
  def follow(run, opts \\ []) do
    {device, opts} = opts |> Options.keyword!() |> Keyword.pop(:device, :stdio)
    display = new(opts)
    if display.note, do: IO.puts(device, display.note)
    follow = %Follow{tag: :sconce_evolve, op: :evolve, display: display, write: &write/2}
    Follow.run(run, follow, device)
  end

  @doc """
  Returns the text of an event, and the updated display.

      iex> progress = Sconce.Evolve.Progress.new(terminal: false)
      iex> event = %{
      ...>   event: :generation, step: 3, steps: 10, evaluations: 3072, evaluations_per_second: 1024.4, mean_return: 20.25,
      ...>   best_return: 500.0, elites: nil, coverage: nil, qd_score: nil, left_s: 7.2
      ...> }
      iex> {text, _progress} = Sconce.Evolve.Progress.write(progress, event)
      iex> IO.iodata_to_binary(text)
      "generation 3/10  3,072 evaluations  1,024/s  mean 20.25  best 500.0  eta 0:07\\n"
  """
  @spec write(%__MODULE__{}, map) :: {iodata, %__MODULE__{}}
  def write(%__MODULE__{} = progress, %{event: :generation} = event) do
    now = System.monotonic_time(:millisecond)
    due? = progress.shown_ms == nil or now - progress.shown_ms >= 1000 * @calm_s

    cond do
      progress.terminal -> {Follow.live(line(event)), %{progress | live: true}}
      due? or event.step == event.steps -> stays(%{progress | shown_ms: now}, event)
      true -> {[], %{progress | last: event}}
    end
  end

  # The last generation of a run that was stopped.
  def write(%__MODULE__{last: %{} = event} = progress, %{event: :done}),
    do: stays(progress, event)

  # The last live line stays.
  def write(%__MODULE__{live: true} = progress, %{event: :done}),
    do: {"\n", %{progress | live: false}}

  def write(%__MODULE__{} = progress, _event), do: {[], progress}

  defp stays(progress, event), do: {[line(event), "\n"], %{progress | last: nil}}

  defp line(event) do
    Enum.join(
      [
        "generation #{Figures.grouped(event.step)}/#{Figures.grouped(event.steps)}",
        "#{Figures.grouped(event.evaluations)} evaluations",
        "#{Figures.grouped(round(event.evaluations_per_second))}/s",
        "mean #{number(event.mean_return)}"
      ] ++
        best(event.best_return) ++
        archive(event) ++ ["eta #{time(event.left_s)}"],
      "  "
    )
  end

  defp best(nil), do: []
  defp best(value), do: ["best #{number(value)}"]

  defp archive(%{coverage: nil}), do: []

  defp archive(event),
    do: [
      "coverage #{:erlang.float_to_binary(100 * event.coverage, decimals: 1)} %",
      "QD #{Figures.grouped(round(event.qd_score))}"
    ]

  defp number(value) when abs(value) >= 100, do: :erlang.float_to_binary(value / 1, decimals: 1)
  defp number(value), do: :erlang.float_to_binary(value / 1, decimals: 2)

  defp time(seconds) do
    seconds = round(seconds)
    "#{div(seconds, 60)}:#{String.pad_leading(to_string(rem(seconds, 60)), 2, "0")}"
  end

  @doc """
  Returns the text of a report of `Sconce.Evolve.Run.await/2`. `follow/2` has an example.
  """
  @spec summary(Sconce.Evolve.Run.report()) :: String.t()
  def summary(%{progress: progress, stopped: stopped} = report) do
    stages = progress.stages
    all = stages.variation_s + stages.evaluation_s + stages.archive_s
    share = fn part -> :erlang.float_to_binary(100 * part / max(all, 1.0e-9), decimals: 1) end

    lines = [
      "#{ended(stopped)} after #{Figures.counted(progress.generation, "generation")}, " <>
        "#{Figures.counted(progress.evaluations, "evaluation")}, best return #{best_text(progress.best)}",
      archive_text(report.archive),
      "#{Figures.grouped(round(report.evaluations_per_second))} evaluations a second, " <>
        "#{Figures.counted(progress.decisions, "decision")} in #{Figures.decimal(report.wall_s)} s",
      "time: variation #{share.(stages.variation_s)} %, evaluation #{share.(stages.evaluation_s)} %, " <>
        "archive #{share.(stages.archive_s)} %"
    ]

    lines |> Enum.reject(&is_nil/1) |> Enum.join("\n")
  end

  defp ended(:done), do: "done"
  defp ended(:stopped), do: "stopped"

  defp best_text(nil), do: "unknown"
  defp best_text(value), do: number(value)

  defp archive_text(nil), do: nil

  defp archive_text(stats) do
    "#{Figures.grouped(stats.elites)} of #{Figures.grouped(stats.cells)} cells, QD score " <>
      Figures.grouped(round(stats.qd_score))
  end
end
