defmodule Sconce.Trainer.Progress do
  @moduledoc """
  Shows the events of a run as text.

  In a terminal it shows a live line, which each step rewrites, and a table with a row for each validation, or for each
  epoch of a run without validation games. Without a terminal (in a log or a pipe) there is no live line, and one line
  marks the start of the final evaluation.

      {:ok, run} = Sconce.Trainer.start_link(corpus: "corpus", out: "run")
      {:ok, report} = Sconce.Trainer.Progress.follow(run)

  The output for a small policy on real games:

  ```text
   epoch     step    loss     NLL  changed  acc %  frames/s  wait %    time
       0      120   4.174   4.352    7.669   81.6   108,653     3.5    0:01  best
       0      160   3.648   3.996    7.207   82.2   107,717     0.1    0:02  best
  step 173/240  loss 4.1222  lr 4.8e-4  110,511 frames/s  wait 0.2 %  eta 0:01
  ```

  `loss`, `frames/s` and `wait %` (the share of time in which training waited for data) cover the steps since the
  previous row. `changed` is the NLL of frames whose action differs from the one before. A wide terminal also shows the
  NLL of each head. `write/2` returns the text without printing it, for other displays.
  """

  alias Sconce.{Figures, Options, Pressure, Text}
  alias Sconce.Run.Follow
  alias Sconce.Trainer.Curve.Scale

  # Seconds between updates of the live line; a step may take less than a millisecond.
  @interval_s 0.1
  # Titles and widths of the columns to the left and to the right of the heads.
  @left [{"epoch", 6}, {"step", 9}, {"loss", 8}, {"NLL", 8}, {"changed", 9}, {"acc %", 7}]
  @right [{"frames/s", 10}, {"wait %", 8}, {"time", 8}]
  # The most characters of a text from a file or an error.
  @most 500
  # Sums over the steps since the last row.
  @nothing %{steps: 0, loss: 0.0, frames: 0.0, seconds: 0.0, waited: 0.0}

  defstruct [:terminal, :columns, :label, :note, :first, :heads, :resumed] ++
              [live: false, shown_s: -1.0, seconds: 0.0, rows: :validation, recent: @nothing]

  @options [
    terminal: [
      type: {:or, [:boolean, nil]},
      default: nil,
      doc: "Whether the output is a terminal; `nil` detects it."
    ],
    columns: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      doc: "Columns of the terminal; `nil` detects them. Without a terminal lines have any width."
    ],
    label: [type: :string, default: "", doc: "Text before each line."],
    note: [type: {:or, [:string, nil]}, default: nil, doc: "A line after the start of the run."]
  ]

  @doc """
  Returns a new display.

  #{Options.docs(@options)}

      iex> Sconce.Trainer.Progress.new(terminal: false, label: "gru").label
      "gru  "
  """
  def new(opts \\ []) do
    [terminal: terminal, columns: columns, label: label, note: note] =
      Options.validate!(opts, @options)

    terminal = if terminal == nil, do: IO.ANSI.enabled?(), else: terminal
    label = if label == "", do: "", else: Text.printable(label, @most) <> "  "
    %__MODULE__{terminal: terminal, columns: columns(terminal, columns), label: label, note: note}
  end

  defp columns(false, _given), do: :infinity

  defp columns(true, nil) do
    case :io.columns() do
      {:ok, columns} -> columns
      {:error, :enotsup} -> :infinity
    end
  end

  defp columns(true, given), do: given

  @doc """
  Subscribes to a run, writes its events to `:device` and returns the result of `Sconce.Trainer.await/2`; the error is
  of kind `:cancelled` if the run is gone. Also accepts the options of `new/1`.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-progress-" <> System.pid())
      iex> games = for n <- 1..4, do: {List.duplicate([n / 4], 20), List.duplicate(1, 20)}
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, games, into: Path.join(dir, "corpus"), heads: [go: {:bernoulli, 1}])
      iex> small = [backbone: :mlp, hidden_sizes: [4], batch_size: 2, window_size: 4, steps: 2]
      iex> {:ok, run} = Sconce.Trainer.start_link([corpus: corpus, out: Path.join(dir, "run")] ++ small)
      iex> {:ok, device} = StringIO.open("")
      iex> {:ok, report} = Sconce.Trainer.Progress.follow(run, device: device, terminal: false)
      iex> report.steps
      2
      iex> {:ok, {_input, text}} = StringIO.close(device)
      iex> text =~ "scoring 20 frames"
      true
      iex> File.rm_rf!(dir) != []
      true
  """
  def follow(run, opts \\ []) do
    {device, opts} = opts |> Options.keyword!() |> Keyword.pop(:device, :stdio)
    follow = %Follow{tag: :sconce_trainer, op: :train, display: new(opts), write: &write/2}
    Follow.run(run, follow, device)
  end

  @doc """
  Returns a function that prints the events of `Sconce.Trainer.evaluate/3`, for its `:progress`. Accepts the options of
  `new/1`.

      iex> printer = Sconce.Trainer.Progress.printer(terminal: false)
      iex> ExUnit.CaptureIO.capture_io(fn -> printer.(%{event: :evaluating, done: 0, total: 480}) end)
      "scoring 480 frames\\n"
  """
  def printer(opts \\ []) do
    progress = new(opts)
    # The events of an evaluation need no state of the display from earlier ones.
    fn event -> %{progress | live: progress.terminal} |> write(event) |> elem(0) |> IO.write() end
  end

  @doc """
  Returns the text of an event, and the updated display.

      iex> progress = Sconce.Trainer.Progress.new(terminal: false)
      iex> event = %{event: :evaluating, done: 0, total: 35_601}
      iex> {text, _progress} = Sconce.Trainer.Progress.write(progress, event)
      iex> IO.iodata_to_binary(text)
      "scoring 35,601 frames\\n"
  """
  @spec write(%__MODULE__{}, map) :: {iodata, %__MODULE__{}}
  def write(%__MODULE__{terminal: terminal} = progress, %{event: _name} = event)
      when is_boolean(terminal),
      do: shown(progress, event)

  defp shown(progress, %{event: :step} = event) do
    first = progress.first || {event.step - 1, event.seconds}
    recent = add(progress.recent, event)
    progress = %{progress | first: first, recent: recent, seconds: event.seconds}
    due? = event.seconds - progress.shown_s >= @interval_s or event.step == event.steps

    if progress.terminal and due?,
      do: live(%{progress | shown_s: event.seconds}, step(event, recent, first)),
      else: {[], progress}
  end

  defp shown(progress, %{event: :start} = event) do
    rows = if event.validation_games == 0, do: :epoch, else: :validation
    note = List.wrap(progress.note)
    stays(%{progress | rows: rows}, resumed(progress.resumed, event) ++ [start(event)] ++ note)
  end

  defp shown(progress, %{event: :resumed, step: step}), do: {[], %{progress | resumed: step}}
  defp shown(progress, %{event: :began} = event), do: stays(progress, began(event))

  defp shown(progress, %{event: :precision, asked: asked, used: used}),
    do: stays(progress, "#{asked} gains nothing on this machine: the run computes in #{used}")

  defp shown(progress, %{event: :overflow, step: step, loss_scale: scale}) do
    line = "a gradient overflowed f16: no update, loss scale #{Figures.grouped(round(scale))}"
    stays(progress, "step #{Figures.grouped(step)}  #{line}")
  end

  defp shown(progress, %{event: :save_failed, step: step, reason: reason}),
    do:
      stays(
        progress,
        "step #{Figures.grouped(step)}  not saved: #{Text.printable(reason, @most)}"
      )

  defp shown(progress, %{event: :callback_late, step: step}),
    do: stays(progress, "step #{Figures.grouped(step)}  the callback was late and is ignored")

  defp shown(progress, %{event: :out_of_memory} = event),
    do: stays(progress, "step #{Figures.grouped(event.step)}  #{short(event)}")

  defp shown(progress, %{event: :grown} = event),
    do: stays(progress, "step #{Figures.grouped(event.step)}  #{grown(event)}")

  # A line of its own stands for what the native side has decided.
  defp shown(progress, %{event: :pressure, by: :elixir} = event),
    do: stays(progress, Text.printable(Pressure.text(event), @most))

  defp shown(%{rows: rows} = progress, %{event: rows} = event) do
    heads = progress.heads || fitting(event, progress)
    columns = @left ++ heads ++ @right
    titles = if progress.heads, do: [], else: [row(columns, Enum.map(columns, &elem(&1, 0)))]
    best = if event[:best], do: "  best", else: ""
    lines = titles ++ [row(columns, cells(event, heads, progress)) <> best]
    stays(%{progress | recent: @nothing, heads: heads}, lines)
  end

  defp shown(progress, %{event: name, done: done, total: total})
       when name in [:evaluating, :progress] do
    cond do
      not progress.terminal and done == 0 ->
        stays(progress, "scoring #{Figures.grouped(total)} frames")

      not progress.terminal ->
        {[], progress}

      done >= total ->
        {Follow.clear(progress), %{progress | live: false}}

      true ->
        live(progress, "scored #{Figures.grouped(done)}/#{Figures.grouped(total)} frames")
    end
  end

  defp shown(progress, %{event: :done}), do: {Follow.clear(progress), %{progress | live: false}}
  defp shown(progress, _event), do: {[], progress}

  # Shortens the line to one row, because a wrapped line cannot be cleared.
  defp live(progress, text) do
    text = String.slice(progress.label <> text, 0, room(progress.columns))
    {Follow.live(text), %{progress | live: true}}
  end

  defp room(:infinity), do: 1_000
  defp room(columns), do: columns - 1

  defp stays(progress, lines) do
    text = for line <- List.wrap(lines), do: [progress.label, line, "\n"]
    {[Follow.clear(progress), text], %{progress | live: false}}
  end

  defp add(recent, event) do
    %{
      steps: recent.steps + 1,
      loss: recent.loss + event.loss,
      frames: recent.frames + event.frames_per_second * event.step_seconds,
      seconds: recent.seconds + event.step_seconds,
      waited: recent.waited + event.data_wait
    }
  end

  defp step(event, recent, first) do
    [
      "step #{Figures.grouped(event.step)}/#{Figures.grouped(event.steps)}",
      "loss #{Scale.number(event.loss, 4)}",
      figures(event.figures),
      "lr #{Scale.power(event.learning_rate)}",
      "#{pace(recent)} frames/s",
      "wait #{waiting(recent)} %",
      "eta #{eta(event, first)}"
    ]
    |> Enum.reject(&(&1 == ""))
    |> Enum.join("  ")
  end

  defp figures(figures) do
    Enum.map_join(figures, "  ", fn {name, figure} ->
      "#{sign(name)} #{Scale.number(figure, 4)}"
    end)
  end

  defp sign(:teacher_kl), do: "kl"
  defp sign(name), do: name

  # Extrapolates the time of all steps since this start, validations included.
  defp eta(event, {first_step, first_s}) do
    case event.step - first_step - 1 do
      0 -> "-"
      done -> Scale.clock((event.seconds - first_s) / done * (event.steps - event.step))
    end
  end

  defp pace(%{seconds: seconds}) when seconds == 0, do: "-"
  defp pace(%{frames: frames, seconds: seconds}), do: Figures.grouped(round(frames / seconds))

  defp waiting(%{seconds: seconds}) when seconds == 0, do: "-"
  defp waiting(%{waited: waited, seconds: s}), do: Scale.number(100 * waited / s, 1)

  defp began(%{policy: path, new: []}), do: "starts from #{path}"

  defp began(%{policy: path, new: new}),
    do:
      "starts from #{path}; new: #{new |> Enum.map(&Path.rootname/1) |> Enum.uniq() |> Enum.join(", ")}"

  defp resumed(nil, _event), do: []

  defp resumed(step, %{steps: steps}) when step >= steps do
    [
      "already finished at step #{Figures.grouped(step)}: nothing to do (--steps N, or steps: N, continues)"
    ]
  end

  defp resumed(step, _event), do: ["continues from step #{Figures.grouped(step)}"]

  defp start(event) do
    [
      "#{Figures.grouped(event.weights)} weights",
      "  training #{Figures.grouped(event.train_frames)} frames of #{Figures.counted(event.train_games, "game")}",
      "  validation #{Figures.grouped(event.validation_frames)} of #{event.validation_games}",
      "  #{Figures.grouped(event.steps)} steps, #{Figures.grouped(event.epoch_steps)} an epoch",
      computed(event.precision),
      skipped(event.skipped_views),
      left_out(Map.get(event, :left_out, %{}))
    ]
    |> IO.iodata_to_binary()
  end

  defp grown(%{micro_batch: windows}),
    do: "enough memory: #{Figures.counted(windows, "window")} of a batch at a time"

  defp short(%{micro_batch: windows, bytes: bytes, memory_limit: limit}) do
    took = if bytes, do: " (#{Figures.size(bytes)}#{of(limit)})", else: ""
    "too little memory#{took}: #{Figures.counted(windows, "window")} of a batch at a time"
  end

  defp of(nil), do: ""
  defp of(limit), do: " of #{Figures.size(limit)}"

  defp computed("f32"), do: ""
  defp computed(precision), do: "  in #{precision}"

  defp skipped(0), do: ""
  defp skipped(n), do: "  (#{n} shorter than a window)"

  defp left_out(counts) when counts == %{}, do: ""

  defp left_out(counts) do
    by_reason = Enum.map_join(Enum.sort(counts), ", ", fn {reason, n} -> "#{n} #{reason}" end)
    "  (views left out: #{by_reason})"
  end

  # Returns the columns of the heads if they fit into a line.
  defp fitting(event, progress) do
    heads =
      for %{name: name} <- Map.get(event, :heads, []) do
        name = Text.printable(name, @most)
        {name, max(String.length(name) + 2, 7)}
      end

    width = Enum.sum(for {_title, width} <- @left ++ heads ++ @right, do: width)
    # `columns` may be `:infinity`, which in Erlang's term order is greater than every number.
    fits? = String.length(progress.label <> "  best") + width <= progress.columns
    # The NLL of a single head equals the total NLL.
    if fits? and length(heads) > 1, do: heads, else: []
  end

  defp row(columns, texts) do
    Enum.zip_with(columns, texts, fn {_title, width}, text -> String.pad_leading(text, width) end)
    |> Enum.join()
  end

  defp cells(event, heads, %{recent: recent, seconds: seconds}) do
    # Without validation a row is an epoch, whose heads have a loss.
    by_head =
      Map.new(Map.get(event, :heads, []), fn head ->
        {Text.printable(head.name, @most), head[:nll] || head[:loss]}
      end)

    [
      "#{event.epoch}",
      Figures.grouped(event.step),
      nats(recent.steps > 0 && recent.loss / recent.steps),
      nats(event[:nll]),
      nats(event[:nll_changed]),
      if(event[:accuracy], do: Scale.number(100 * event.accuracy, 1), else: "-")
    ] ++
      for({name, _width} <- heads, do: nats(by_head[name])) ++
      [pace(recent), waiting(recent), Scale.clock(seconds)]
  end

  defp nats(value) when value in [nil, false], do: "-"
  defp nats(value), do: Scale.number(value, 3)
end
