defmodule Sconce.Trainer.Progress do
  @moduledoc """
  Events as lines for a person: one live line in a terminal, which each step writes anew, and a line
  that stays for each validation. Without a terminal (a log, a pipe) only the latter.

      {:ok, run} = Sconce.Trainer.start_link(corpus: "corpus", out: "run")
      {:ok, report} = Sconce.Trainer.Progress.follow(run)

  `write/2` is the pure part, for a display of one's own:

      iex> progress = Sconce.Trainer.Progress.new(terminal: false)
      iex> event = %{event: :validation, step: 1200, epoch: 3, nll: 1.4, nll_changed: nil,
      ...>           accuracy: 0.831, best: true, seconds: 60.0}
      iex> {text, _progress} = Sconce.Trainer.Progress.write(progress, event)
      iex> IO.iodata_to_binary(text)
      "epoch 3  step 1,200  validation NLL 1.400  accuracy 83.1 %  best so far\\n"
  """

  alias Sconce.{Figures, Options, Trainer}
  alias Sconce.Trainer.Curve.Scale

  # A step may take less than a millisecond, an eye more.
  @interval_s 0.1
  @clear "\r\e[K"

  defstruct [:terminal, :label, :first, live: false, shown_s: -1.0]

  @options [
    terminal: [type: {:or, [:boolean, nil]}, default: nil, doc: "`nil` finds it out."],
    label: [type: :string, default: "", doc: "What each line begins with."]
  ]

  @doc """
  A display that has shown nothing.

  #{Options.docs(@options)}
  """
  def new(opts \\ []) do
    [terminal: terminal, label: label] = Options.validate!(opts, @options)
    terminal = if terminal == nil, do: IO.ANSI.enabled?(), else: terminal
    %__MODULE__{terminal: terminal, label: if(label == "", do: "", else: label <> "  ")}
  end

  @doc """
  Subscribes to a run, writes what happens to `:device` and returns what `Sconce.Trainer.await/2`
  does, of kind `:cancelled` for one that is gone. Takes the options of `new/1` as well.
  """
  def follow(run, opts \\ []) do
    {device, opts} = Keyword.pop(opts, :device, :stdio)
    progress = new(opts)

    # Events bear the pid, whatever name was given.
    case GenServer.whereis(run) do
      pid when is_pid(pid) -> follow(pid, progress, device)
      _none_here -> Trainer.await(run)
    end
  end

  defp follow(run, progress, device) do
    monitor = Process.monitor(run)
    outcome = with :ok <- Trainer.subscribe(run), do: listen(run, monitor, progress, device)
    Process.demonitor(monitor, [:flush])
    outcome
  end

  defp listen(run, monitor, progress, device) do
    receive do
      {:sconce_trainer, ^run, event} ->
        {text, progress} = write(progress, event)
        IO.write(device, text)

        case event do
          %{event: :done, result: result} -> result
          _more -> listen(run, monitor, progress, device)
        end

      {:DOWN, ^monitor, :process, _pid, _reason} ->
        IO.write(device, clear(progress))
        Trainer.await(run)
    end
  end

  @doc "A function that writes the events of `Sconce.Trainer.evaluate/3`, for its `:progress`."
  def printer(opts \\ []) do
    progress = new(opts)
    # Each event tells all there is to show, so nothing has to be kept between them.
    fn event -> %{progress | live: progress.terminal} |> write(event) |> elem(0) |> IO.write() end
  end

  @doc "What to write for an event, and the display after it."
  @spec write(%__MODULE__{}, map) :: {iodata, %__MODULE__{}}
  def write(progress, %{event: :step} = event) do
    first = progress.first || {event.step - 1, event.seconds}
    progress = %{progress | first: first}
    due? = event.seconds - progress.shown_s >= @interval_s or event.step == event.steps

    if progress.terminal and due? do
      text = [@clear, progress.label, step(event, first)]
      {text, %{progress | live: true, shown_s: event.seconds}}
    else
      {[], progress}
    end
  end

  def write(progress, %{event: name, done: done, total: total})
      when name in [:evaluating, :progress] do
    cond do
      not progress.terminal -> {[], progress}
      done >= total -> {clear(progress), %{progress | live: false}}
      true -> {[@clear, progress.label, scored(done, total)], %{progress | live: true}}
    end
  end

  def write(progress, event) do
    case line(event) do
      nil -> {[], progress}
      [] -> {clear(progress), %{progress | live: false}}
      text -> {[clear(progress), progress.label, text, "\n"], %{progress | live: false}}
    end
  end

  defp clear(%{live: true}), do: @clear
  defp clear(_progress), do: []

  defp step(event, first) do
    [
      "step #{Figures.grouped(event.step)}/#{Figures.grouped(event.steps)}",
      "  epoch #{event.epoch}",
      "  loss #{Scale.number(event.loss, 4)}",
      "  lr #{rate(event.learning_rate)}",
      "  #{Figures.grouped(round(event.frames_per_second))} frames/s",
      "  wait #{Scale.number(1000 * event.data_wait, 1)} ms",
      "  eta #{eta(event, first)}"
    ]
  end

  # From all steps of this run, validations included.
  defp eta(event, {first_step, first_s}) do
    case event.step - first_step - 1 do
      0 -> "-"
      done -> Scale.clock((event.seconds - first_s) / done * (event.steps - event.step))
    end
  end

  defp rate(value), do: :io_lib.format("~.2e", [value / 1])

  defp scored(done, total),
    do: "scored #{Figures.grouped(done)}/#{Figures.grouped(total)} frames"

  defp line(%{event: :start} = event) do
    [
      "#{Figures.grouped(event.weights)} weights",
      "  training #{Figures.grouped(event.train_frames)} frames of #{event.train_games} games",
      "  validation #{Figures.grouped(event.validation_frames)} of #{event.validation_games}",
      "  #{Figures.grouped(event.steps)} steps, #{Figures.grouped(event.epoch_steps)} an epoch",
      skipped(event.skipped_views)
    ]
  end

  defp line(%{event: :resumed, step: step}), do: "goes on from step #{Figures.grouped(step)}"

  defp line(%{event: :validation} = event) do
    [
      "epoch #{event.epoch}  step #{Figures.grouped(event.step)}",
      "  validation NLL #{Scale.number(event.nll, 3)}",
      if(event.nll_changed, do: " (changed #{Scale.number(event.nll_changed, 3)})", else: ""),
      "  accuracy #{Scale.number(100 * event.accuracy, 1)} %",
      if(event.best, do: "  best so far", else: "")
    ]
  end

  defp line(%{event: :save_failed} = event),
    do: "step #{Figures.grouped(event.step)}  not saved: #{event.reason}"

  defp line(%{event: :done}), do: []
  defp line(_event), do: nil

  defp skipped(0), do: ""
  defp skipped(n), do: "  (#{n} shorter than a window)"
end
