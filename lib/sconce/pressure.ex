defmodule Sconce.Pressure do
  alias Sconce.{Device, Error, Events, Options, Text}
  alias Sconce.Pressure.{Growth, Table}

  @options [
    rows: [
      type: :any,
      default: [],
      doc:
        "Rows in place of those of the table: `%{{:device, :train} => [retry: [times: 5], stop: []]}`."
    ],
    other_device: [
      type: {:or, [Device.type(), nil]},
      default: nil,
      doc: "Device that may be used instead of the one that failed; `nil` allows none."
    ],
    grow_after: [
      type: :pos_integer,
      default: 16,
      max: 1_000_000,
      doc: "Good steps before a size that was made smaller grows again."
    ],
    forget_after: [
      type: :pos_integer,
      default: 1_024,
      max: 1_000_000_000,
      doc: "Good steps after which a size that failed may be tried again."
    ],
    fits: [
      type: {:or, [{:fun, 1}, nil]},
      default: nil,
      doc:
        "Function that says of a size whether it has room, see `room/2`; `nil` tries each size."
    ],
    progress: [
      type: {:or, [{:fun, 1}, nil]},
      default: nil,
      doc: "Function that is called with each decision, as an event."
    ]
  ]

  @moduledoc """
  Decides what follows when memory, a deadline or a device fails, by one table.

      iex> work = fn size ->
      ...>   if size <= 16, do: {:ok, size}, else: {:error, %Sconce.Error{kind: :out_of_memory, op: :embed}}
      ...> end
      iex> pressure = Sconce.Pressure.new(:serve, rows: %{{:memory, :serve} => [:smaller, :stop]})
      iex> {:ok, 16, pressure} = Sconce.Pressure.run(pressure, 64, work)
      iex> pressure
      #Sconce.Pressure<serve · size 16 of 64, 32 failed>

  ## The table

  The first answer that applies is the decision. A failure without a row is `:stop`.

  | failed | where | answers, in order | carried out by |
  |---|---|---|---|
  #{Table.docs()}

  | answer | meaning and options |
  |---|---|
  #{Table.answer_docs()}

  `Sconce.Trainer`, `Sconce.PPO`, `Sconce.Serving` and `Sconce.Rollout` have an option `:pressure` with the options of
  `new/2`. Rows that other code carries out by itself cannot be replaced; such an option raises.

  The error says what failed: `:out_of_memory` is memory, `:deadline` a deadline. A device has failed if an error of
  kind `:unavailable` has the `cause` of a missing device, or if the text of an error names a failure of CUDA. All other
  errors are none of this table.

  ## Events

  Each decision is an event `:pressure`, see `Sconce.Events`. A run sends it to its subscribers; others call the function
  `:progress`; `:telemetry` has it as `[:sconce, :pressure, :decision]`. Decisions of the native side are the same event
  with `by: :native`.

  ## Sizes

  A size that failed is a ceiling. After `:grow_after` good steps the size grows again: it doubles without a ceiling, and
  moves half the way to the ceiling otherwise, until the ceiling is less than an eighth away. A size that fails again
  goes back to the last one that went well. The ceiling is forgotten after `:forget_after` good steps. The micro-batch of a
  `Sconce.Trainer` follows the same rule, with the defaults of these options, if the run has `grow_micro_batch: true`. It
  does not grow otherwise, because rounding errors depend on it. The saved state has the known sizes, so that a resumed run
  has the bits of an uninterrupted one that ran out of memory in the same steps.
  """

  require Logger

  @enforce_keys [:where, :answers]
  defstruct @enforce_keys ++
              [:other_device, :fits, :progress, :place, :growth] ++
              [grow_after: 16, forget_after: 1_024, tries: %{}]

  @typedoc "A kind of failure."
  @type failed :: :memory | :deadline | :device

  @typedoc "A place of the table."
  @type where :: :train | :play | :serve | :store | :network

  @typedoc "A decision; the number of `:retry` is the wait in milliseconds."
  @type decision ::
          {:smaller, pos_integer}
          | {:retry, non_neg_integer}
          | :cold
          | {:other_device, Device.choice()}
          | :skip
          | :stop

  @type t :: %__MODULE__{where: where, answers: %{failed => keyword}}

  @doc """
  Returns the table as data: `failed`, `where`, `answers` with their options, who carries them out (`by`), and whether the
  row is `fixed`.

      iex> row = Sconce.Pressure.table() |> Enum.find(&({&1.failed, &1.where} == {:device, :train}))
      iex> Keyword.keys(row.answers)
      [:retry, :other_device, :stop]
      iex> row.answers[:retry][:times]
      2
  """
  @spec table() :: [map]
  def table, do: Table.rows()

  @doc """
  Returns the state of decisions at a place of the table.

  #{Options.docs(@options)}

      iex> Sconce.Pressure.new(:train, other_device: :cpu)
      #Sconce.Pressure<train · may use cpu>
      iex> Sconce.Pressure.new(:train, rows: %{{:memory, :train} => [:shrink]})
      ** (ArgumentError) unknown answer of option :rows :shrink, did you mean :skip?
  """
  @spec new(where, keyword) :: t
  def new(where, opts \\ []) do
    Options.known!(where, Table.places(), "place")
    {rows, options} = opts |> Options.validate!(@options) |> Keyword.pop!(:rows)
    struct!(%__MODULE__{where: where, answers: Table.answers!(where, rows)}, options)
  end

  @doc """
  Returns what has failed by an error, nil for an error that the table does not have.

      iex> Sconce.Pressure.failed(%Sconce.Error{kind: :deadline, op: :train})
      :deadline
      iex> {:error, error} = Sconce.Device.resolve({:cuda, 9_999})
      iex> Sconce.Pressure.failed(error)
      :device
      iex> Sconce.Pressure.failed(%Sconce.Error{kind: :mismatch, op: :train})
      nil
  """
  @spec failed(Error.t()) :: failed | nil
  def failed(%Error{kind: :out_of_memory}), do: :memory
  def failed(%Error{kind: :deadline}), do: :deadline
  def failed(%Error{kind: :unavailable, details: %{cause: _cause}}), do: :device

  # Errors of CUDA in the middle of work are texts of the driver.
  def failed(%Error{details: %{reason: reason}}) when is_binary(reason),
    do: if(reason =~ ~r/CUDA_ERROR|CUBLAS_STATUS|DriverError/, do: :device)

  def failed(%Error{}), do: nil

  @doc """
  Decides what follows a failure, and returns the decision and the new state. Nothing else happens.

  `without` are answers that do not apply now, such as `:retry` of a run that has saved nothing.

      iex> pressure = Sconce.Pressure.new(:train, other_device: :cpu)
      iex> {decision, pressure} = Sconce.Pressure.decide(pressure, :device)
      iex> decision
      {:retry, 500}
      iex> {decision, pressure} = Sconce.Pressure.decide(pressure, :device)
      iex> decision
      {:retry, 1000}
      iex> {decision, pressure} = Sconce.Pressure.decide(pressure, :device)
      iex> decision
      {:other_device, :cpu}
      iex> {decision, _pressure} = Sconce.Pressure.decide(pressure, :device)
      iex> decision
      :stop
  """
  @spec decide(t, failed | Error.t(), [atom]) :: {decision, t}
  def decide(pressure, failed, without \\ [])

  def decide(%__MODULE__{} = pressure, %Error{} = error, without) do
    case failed(error) do
      nil -> {:stop, pressure}
      failed -> decide(pressure, failed, without)
    end
  end

  def decide(%__MODULE__{answers: answers} = pressure, failed, without) do
    Options.known!(failed, Table.failures(), "failure")
    names!(without)
    left = for {name, options} <- answers[failed] || [], name not in without, do: {name, options}
    Enum.find_value(left, {:stop, pressure}, &answer(&1, failed, pressure))
  end

  defp names!(without) do
    [without: _names] =
      Options.validate!([without: without], without: [type: {:list, {:in, Table.answers()}}])
  end

  # The decision of an answer and the new state, or nil if the answer does not apply.
  defp answer({:smaller, options}, _failed, %{growth: %Growth{} = growth} = pressure) do
    with %Growth{size: size} = growth <- Growth.smaller(growth, options[:floor]),
         do: {{:smaller, size}, %{pressure | growth: growth}}
  end

  defp answer({:retry, options}, failed, %{tries: tries} = pressure) do
    tried = Map.get(tries, failed, 0)

    # An integer is less than any atom, so `:infinity` has no end.
    if tried < options[:times] do
      wait = min(options[:backoff_ms] * 2 ** min(tried, 40), options[:most_ms])
      {{:retry, wait}, %{pressure | tries: Map.put(tries, failed, tried + 1)}}
    end
  end

  defp answer({:cold, _options}, _failed, %{place: nil} = pressure),
    do: {:cold, %{pressure | place: :cold}}

  defp answer(
         {:other_device, _options},
         _failed,
         %{other_device: device, place: place} = pressure
       )
       when device != nil and place in [nil, :cold],
       do: {{:other_device, device}, %{pressure | place: {:device, device}}}

  defp answer({name, _options}, _failed, pressure) when name in [:skip, :stop],
    do: {name, pressure}

  defp answer(_answer, _failed, _pressure), do: nil

  @doc """
  Counts a step that went well, and returns `{:larger, size}` if the size grows with it, else `:same`, and the new state.

      iex> pressure = Sconce.Pressure.new(:store, grow_after: 1, rows: %{{:memory, :store} => [:smaller]})
      iex> full = fn size ->
      ...>   if size < 32, do: {:ok, size}, else: {:error, %Sconce.Error{kind: :out_of_memory, op: :put}}
      ...> end
      iex> {:ok, 16, pressure} = Sconce.Pressure.run(pressure, 32, full)
      iex> pressure
      #Sconce.Pressure<store · size 24 of 32, 32 failed>
      iex> {grown, pressure} = Sconce.Pressure.went_well(pressure)
      iex> grown
      {:larger, 28}
      iex> {grown, _pressure} = Sconce.Pressure.went_well(pressure)
      iex> grown
      {:larger, 30}
  """
  @spec went_well(t) :: {{:larger, pos_integer} | :same, t}
  def went_well(%__MODULE__{growth: nil} = pressure), do: {:same, %{pressure | tries: %{}}}

  def went_well(%__MODULE__{growth: %Growth{size: size} = growth} = pressure) do
    growth = Growth.went_well(growth, pressure.grow_after, pressure.forget_after, pressure.fits)
    pressure = %{pressure | growth: growth, tries: %{}}
    {if(growth.size > size, do: {:larger, growth.size}, else: :same), pressure}
  end

  @doc """
  Calls `work` with `size`, or less, until it succeeds or the table ends it. Returns `{:ok, value, pressure}` or
  `{:error, error, pressure}`; the next call takes this state, and begins with the size that has gone well.

  `work` returns `{:ok, value}` or `{:error, %Sconce.Error{}}`. With two arguments it also gets the place: `nil`, `:cold`
  or `{:device, device}`. A retry waits in the process of the caller. Garbage of the caller is collected before another
  try, because it may hold the memory that is missing.

      iex> pressure = Sconce.Pressure.new(:serve, other_device: :cpu)
      iex> work = fn _size, place ->
      ...>   {:device, device} = place || {:device, {:cuda, 9_999}}
      ...>   Sconce.Device.resolve(device)
      ...> end
      iex> {:ok, device, _pressure} = Sconce.Pressure.run(pressure, 1, work)
      iex> device
      #Sconce.Device<cpu>
  """
  @spec run(t, pos_integer, (pos_integer -> result) | (pos_integer, term -> result)) ::
          {:ok, term, t} | {:error, Error.t(), t}
        when result: {:ok, term} | {:error, Error.t()}
  def run(%__MODULE__{growth: growth} = pressure, size, work)
      when is_integer(size) and size > 0 and (is_function(work, 1) or is_function(work, 2)) do
    attempt(%{pressure | growth: Growth.wanted(growth, size)}, work)
  end

  def run(%__MODULE__{}, size, work) when is_function(work, 1) or is_function(work, 2),
    do: Options.argument!("size", size, "a positive integer")

  def run(%__MODULE__{}, _size, work),
    do: Options.argument!("work", work, "a function of a size, or of a size and a place")

  @doc false
  # Calls `work` with a device, and with `:other_device` if the table says so.
  @spec place(t, device, (device -> {:ok, value} | {:error, Error.t()})) ::
          {:ok, value} | {:error, Error.t()}
        when value: term, device: term
  def place(pressure, device, work) do
    placed = fn 1, place ->
      work.(with({:device, other} <- place, do: other, else: (_own -> device)))
    end

    case run(pressure, 1, placed) do
      {:ok, value, _pressure} -> {:ok, value}
      {:error, error, _pressure} -> {:error, error}
    end
  end

  defp attempt(%{growth: %{size: size}} = pressure, work) do
    case call(work, size, pressure.place) do
      {:ok, value} ->
        {grown, after_it} = went_well(pressure)
        if grown != :same, do: tell(after_it, event(pressure, nil, grown, nil))
        {:ok, value, after_it}

      {:error, %Error{} = error} ->
        failed = failed(error)
        {decision, after_it} = decide(pressure, error)
        if failed, do: tell(after_it, event(after_it, failed, decision, error))
        follow(decision, error, after_it, work)

      other ->
        Options.argument!("the result of work", other, "{:ok, value} or {:error, Sconce.Error}")
    end
  end

  defp call(work, size, _place) when is_function(work, 1), do: work.(size)
  defp call(work, size, place), do: work.(size, place)

  defp follow(decision, error, pressure, _work) when decision in [:skip, :stop],
    do: {:error, error, pressure}

  defp follow(decision, _error, pressure, work) do
    :erlang.garbage_collect()
    with {:retry, wait} <- decision, do: Process.sleep(wait)
    attempt(pressure, work)
  end

  @doc """
  Returns a memory model for the option `:fits`: a function that says whether a size fits into `free` bytes. Bytes are a
  straight line through `probes`, two pairs of a size and its measured bytes.

      iex> fits = Sconce.Pressure.room([{8, 1_000}, {16, 1_800}], 3_000)
      iex> {fits.(24), fits.(32)}
      {true, false}
  """
  @spec room([{pos_integer, number}], non_neg_integer) :: (pos_integer -> boolean)
  def room([{size, bytes}, {other, more}], free)
      when is_integer(size) and is_integer(other) and size != other and is_number(bytes) and
             is_number(more) and is_integer(free) do
    fn asked ->
      (bytes - free) * abs(other - size) + (more - bytes) * sign(other - size) * (asked - size) <=
        0
    end
  end

  def room(probes, free) when is_integer(free),
    do: Options.argument!("probes", probes, "two pairs of a size and its bytes, of two sizes")

  def room(_probes, free), do: Options.argument!("free", free, "a number of bytes")

  defp sign(number), do: if(number < 0, do: -1, else: 1)

  @doc false
  # The event of a decision. `by` is `:elixir` or `:native`.
  @spec event(t, failed | nil, decision | {:larger, pos_integer}, Error.t() | nil, keyword) :: map
  def event(%__MODULE__{} = pressure, failed, decision, error, more \\ []) do
    {name, value} = if is_tuple(decision), do: decision, else: {decision, nil}

    %{
      event: :pressure,
      size: if(name in [:smaller, :larger], do: value),
      wait_ms: if(name == :retry, do: value),
      tries: Map.get(pressure.tries, failed, 0),
      failed: failed,
      where: pressure.where,
      decision: name,
      device: if(name == :other_device, do: value),
      reason: error && Exception.message(error),
      by: Keyword.get(more, :by, :elixir)
    }
  end

  @doc false
  # The text of an event, in one line.
  @spec text(map) :: String.t()
  def text(%{decision: decision, reason: reason} = event) do
    follows =
      case decision do
        :retry -> "the same again in #{event.wait_ms} ms, from the last saved state"
        :other_device -> "goes on with device: #{inspect(event.device)}"
        :stop -> "the end, with what was saved"
        _size -> "#{decision} #{event.size}"
      end

    because = if reason, do: " (#{reason})", else: ""
    "#{event.failed} failed#{because}: #{follows}"
  end

  @doc false
  # Tells an event of decisions outside of runs.
  @spec tell(t, map) :: :ok
  def tell(%__MODULE__{progress: progress}, event) do
    if progress, do: show(progress, event)
    Events.execute(event, %{})
  end

  # A function of the app that crashes does not end a serving or a rollout.
  defp show(progress, event) do
    progress.(event)
  catch
    kind, reason ->
      what = Exception.format_banner(kind, reason, __STACKTRACE__)
      Logger.warning("progress function of pressure: #{Text.lines(what)}")
  end

  defimpl Inspect do
    alias Sconce.Pressure.Growth

    def inspect(pressure, _opts) do
      parts = [size(pressure.growth), place(pressure)] |> Enum.reject(&is_nil/1)
      Sconce.Text.printable("#Sconce.Pressure<#{Enum.join([pressure.where | parts], " · ")}>")
    end

    defp size(%Growth{} = growth), do: Growth.text(growth)
    defp size(_none), do: nil

    defp place(%{place: {:device, device}}), do: "on #{shown(device)}"
    defp place(%{place: :cold}), do: "cold"
    defp place(%{other_device: nil}), do: nil
    defp place(%{other_device: device}), do: "may use #{shown(device)}"

    defp shown({:cuda, cards}) when is_list(cards), do: "cuda:" <> Enum.join(cards, ",")
    defp shown({:cuda, card}), do: "cuda:#{card}"
    defp shown(device), do: Kernel.inspect(device) |> String.trim_leading(":")
  end
end
