defmodule Sconce.PPO.Progress do
  @moduledoc """
  Shows the events of a run of `Sconce.PPO` as text: in a terminal a live line, and elsewhere a line about every ten
  seconds.

      {:ok, run} = Sconce.PPO.start_link(env: :cart_pole, out: "run")
      {:ok, report} = Sconce.PPO.Progress.follow(run)

  ```text
  cart_pole · 32 rows · 244 updates of 2,048 steps · 9.2 k weights
  update 61/244  124,928 steps  return 452.1  length 452  entropy 0.55  kl 0.003  152,310 steps/s  eta 0:02
  ```
  """

  alias Sconce.{Figures, Options, Pressure, Text}
  alias Sconce.Run.Follow
  alias Sconce.Trainer.Curve.Scale

  # Seconds between two live lines, and between two lines without a terminal.
  @interval_s 0.1
  @calm_s 10

  @options [
    terminal: [
      type: {:or, [:boolean, nil]},
      default: nil,
      doc: "Whether the output is a terminal; `nil` detects it."
    ]
  ]

  # `last` is the latest update, unless its line was written.
  defstruct [:terminal, :last, live: false, shown_s: -100.0]

  @doc """
  Returns a new display. `write/2` has an example.

  #{Options.docs(@options)}
  """
  def new(opts \\ []) do
    [terminal: terminal] = Options.validate!(opts, @options)
    %__MODULE__{terminal: if(terminal == nil, do: IO.ANSI.enabled?(), else: terminal)}
  end

  @doc """
  Subscribes to a run, writes its events to `:device` and returns the result of `Sconce.PPO.await/2`. Also accepts the
  options of `new/1`.

      iex> out = Path.join(System.tmp_dir!(), "sconce-follow-#{System.pid()}")
      iex> small = [environments: 4, rollout_steps: 8, minibatches: 2, hidden_sizes: [8], steps: 32]
      iex> {:ok, run} = Sconce.PPO.start_link([env: :cart_pole, out: out] ++ small)
      iex> {:ok, device} = StringIO.open("")
      iex> {:ok, report} = Sconce.PPO.Progress.follow(run, device: device, terminal: false)
      iex> {_input, text} = StringIO.contents(device)
      iex> {report.updates, text =~ "update 1/1  32 steps"}
      {1, true}
      iex> GenServer.stop(run)
      :ok
      iex> File.rm_rf!(out) != []
      true
  """
  def follow(run, opts \\ []) do
    {device, opts} = opts |> Options.keyword!() |> Keyword.pop(:device, :stdio)
    follow = %Follow{tag: :sconce_ppo, op: :learn, display: new(opts), write: &write/2}
    Follow.run(run, follow, device)
  end

  @doc """
  Returns the text of an event, and the updated display.

      iex> progress = Sconce.PPO.Progress.new(terminal: false)
      iex> {text, _progress} = Sconce.PPO.Progress.write(progress, %{event: :resumed, step: 4096})
      iex> IO.iodata_to_binary(text)
      "continues from step 4,096\\n"
  """
  @spec write(%__MODULE__{}, map) :: {iodata, %__MODULE__{}}
  def write(%__MODULE__{} = progress, %{event: _name} = event), do: shown(progress, event)

  defp shown(progress, %{event: :start} = event) do
    update = div(event.steps, max(event.updates, 1))

    stays(
      progress,
      "#{event.env} · #{Figures.grouped(event.rows)} rows · #{Figures.counted(event.updates, "update")} of " <>
        "#{Figures.grouped(update)} steps · #{Figures.grouped(event.weights)} weights"
    )
  end

  defp shown(progress, %{event: :resumed, step: step}),
    do: stays(progress, "continues from step #{Figures.grouped(step)}")

  defp shown(progress, %{event: :update} = event) do
    last? = event.updates == event.updates_in_all
    interval = if progress.terminal, do: @interval_s, else: @calm_s

    shown = %{progress | shown_s: event.seconds, last: nil}

    cond do
      event.seconds - progress.shown_s < interval and not last? -> {[], %{progress | last: event}}
      progress.terminal -> live(shown, line(event))
      true -> stays(shown, line(event))
    end
  end

  defp shown(progress, %{event: :failed} = event),
    do: stays(progress, "update #{event.update} failed: #{event.reason}")

  defp shown(progress, %{event: :pressure} = event),
    do: stays(progress, Text.printable(Pressure.text(event)))

  # The last update of a run that ends before its last step.
  defp shown(%{last: %{} = event} = progress, %{event: :done}),
    do: stays(%{progress | last: nil}, line(event))

  defp shown(progress, %{event: :done}), do: stays(progress, [])
  defp shown(progress, _event), do: {[], progress}

  defp live(progress, text), do: {Follow.live(text), %{progress | live: true}}

  defp stays(progress, lines) do
    text = for line <- List.wrap(lines), do: [line, "\n"]
    # The last live line stays.
    before = if lines == [] and progress.live, do: "\n", else: Follow.clear(progress)
    {[before | text], %{progress | live: false}}
  end

  defp line(event) do
    Enum.join(
      [
        "update #{Figures.grouped(event.updates)}/#{Figures.grouped(event.updates_in_all)}",
        "#{Figures.grouped(event.steps)} steps",
        "return #{number(event.mean_return, 1)}#{elo(event)}",
        "length #{number(event.mean_length, 0)}",
        "entropy #{number(event.figures[:entropy], 2)}",
        "kl #{number(event.figures[:approx_kl], 3)}",
        "#{Figures.grouped(round(event.steps_per_second))} steps/s",
        "eta #{eta(event)}"
      ],
      "  "
    )
  end

  defp elo(%{elo: elo}) when elo != nil, do: "  elo #{number(elo, 0)}"
  defp elo(_event), do: ""

  defp number(nil, _digits), do: "-"
  defp number(value, digits), do: Scale.number(value, digits)

  defp eta(event) do
    left = event.updates_in_all - event.updates
    Scale.clock(event.seconds / event.updates * left)
  end
end
