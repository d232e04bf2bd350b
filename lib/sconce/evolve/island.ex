defmodule Sconce.Evolve.Island do
  alias Sconce.{Error, Native, Options, Pressure}
  alias Sconce.Evolve.{Archive, Outbox, Search}
  alias Sconce.Native.Call
  alias Sconce.Serving.Group

  @options [
    group: [type: :any, required: true, doc: "Name of the group of islands, any term."],
    every: [
      type: :pos_integer,
      default: 10,
      max: 1_000_000,
      doc: "Generations between two exchanges."
    ],
    migrants: [
      type: :pos_integer,
      default: 32,
      max: 2 ** 20,
      doc: "Elites that are drawn and sent to another island in an exchange."
    ],
    generations: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 2 ** 53,
      doc: "Generations after which the island rests; `nil` is no end."
    ],
    seed: [
      type: :non_neg_integer,
      default: 0,
      max: 2 ** 64 - 1,
      doc: "Seed of the choice of migrants."
    ]
  ]

  @moduledoc """
  An island: a search with an archive that exchanges elites with the islands of its group, on this node and on others of
  an Erlang cluster.

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> archive = fn ->
      ...>   {:ok, archive} =
      ...>     Sconce.Evolve.Archive.new(
      ...>       cells: {:grid, [10, 10]},
      ...>       ranges: [{-2.4, 2.4}, {0, 1}],
      ...>       solution_size: Sconce.Evolve.Search.size(spec)
      ...>     )
      ...>   archive
      ...> end
      iex> islands =
      ...>   for seed <- 1..2 do
      ...>     own = [archive: archive.(), batch: 64, measures: [{:final, 0}, {:input, 0}], seed: seed]
      ...>     {:ok, search} = Sconce.Evolve.Search.new(spec, :cart_pole, own)
      ...>     {:ok, island} = Sconce.Evolve.Island.start_link(search, group: :carts, generations: 30, seed: seed)
      ...>     island
      ...>   end
      iex> for island <- islands, do: Sconce.Evolve.Island.await(island)
      [:ok, :ok]
      iex> whole = archive.()
      iex> {:ok, 2} = Sconce.Evolve.Island.merge(:carts, whole)
      iex> {:ok, stats} = Sconce.Evolve.Archive.stats(whole)
      iex> stats.elites > 0
      true
      iex> for island <- islands, do: GenServer.stop(island)
      [:ok, :ok]

  Every `:every` generations an island sends some of its elites to another one, to each in turn. A new island asks the
  others for all their elites. Elites go in messages of up to 1 MiB, and four of them wait for an answer at most: an island that
  falls behind gets fewer migrants, and its mailbox stays short. An island or node that dies is left out; its migrants are in the archives of the others, and
  `merge/2` collects the elites of all islands that live. All islands of a group need the same cells and solutions of one
  size; elites that do not fit are dropped and counted.

  Exchanges depend on time, so a group's result is not reproducible, unlike that of a single search. Islands trust the
  nodes of their cluster, as Erlang does.
  """

  use Sconce.Server

  # Milliseconds for which calls wait for the round of an island.
  @call_ms 60_000
  @pressure Pressure.new(:network)
  # Milliseconds before an island that has lost its group tries to join it again.
  @rejoin_ms 20

  @typedoc "The pid or the name of an island."
  @type island :: GenServer.server()

  @doc """
  Starts an island of a search, which needs an archive.

  #{Options.docs(@options)}

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> size = Sconce.Evolve.Search.size(spec)
      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [10]}, ranges: [{0, 500}], solution_size: size)
      iex> {:ok, search} =
      ...>   Sconce.Evolve.Search.new(spec, :cart_pole, archive: archive, batch: 16, measures: [:length])
      iex> {:ok, island} = Sconce.Evolve.Island.start_link(search, group: "alone", generations: 20)
      iex> Sconce.Evolve.Island.await(island)
      :ok
      iex> info = Sconce.Evolve.Island.info(island)
      iex> {info.generation, info.sent, info.progress.evaluations}
      {20, 0, 320}
      iex> {:ok, whole} = Sconce.Evolve.Archive.new(cells: {:grid, [10]}, ranges: [{0, 500}], solution_size: size)
      iex> Sconce.Evolve.Island.merge("alone", whole)
      {:ok, 1}
      iex> GenServer.stop(island)
      :ok
  """
  @spec start_link(Search.t(), keyword) :: GenServer.on_start()
  def start_link(%Search{} = search, opts) do
    {name, opts} = opts |> Options.keyword!() |> Keyword.split([:name])
    if name[:name], do: Options.name!(name[:name])
    opts = Options.validate!(opts, @options)
    search.archive || Options.argument!("search", search, "a search with an archive")
    GenServer.start_link(__MODULE__, {search, Map.new(opts)}, name)
  end

  @doc """
  Returns figures of an island: `generation`, `progress` of its last round (nil before), `sent` and `received` elites,
  `withheld` ones, for which another island had no room, `stored` ones of those received, `refused` messages, and `error` if its search has ended with one. `start_link/2` has an
  example.
  """
  @spec info(island) :: map | {:error, Error.t()}
  def info(island), do: call(island, :info)

  @doc """
  Waits until an island has finished its generations; a dead one is an error of kind `:cancelled`. `start_link/2` has an
  example.
  """
  @spec await(island, timeout) :: :ok | {:error, Error.t()}
  def await(island, timeout \\ :infinity), do: call(island, :await, Options.timeout!(timeout))

  @doc """
  Adds the elites of all islands of a group to an archive, and returns how many islands gave theirs. An island that has
  died is left out. `start_link/2` has an example.

  The elites of an island that answers late, or that do not fit the archive, are missing; those of all others are added
  first. The error then has the kind of the first such island. Its `details` have `merged`, the number of islands that
  gave their elites, and `failed`, a list of `{pid, error}`.
  """
  @spec merge(term, Archive.t()) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def merge(group, %Archive{} = archive) do
    gone? = &match?({_island, {:error, %Error{kind: :cancelled}}}, &1)
    answers = for island <- members(group), do: {island, gather(island, archive)}
    answers = Enum.reject(answers, gone?)

    case for {island, {:error, error}} <- answers, do: {island, error} do
      [] -> {:ok, length(answers)}
      failed -> {:error, unmerged(failed, length(answers) - length(failed))}
    end
  end

  defp gather(island, archive),
    do: with({:ok, elites} <- call(island, :elites), do: add(archive, elites))

  defp unmerged([{_island, %Error{kind: kind}} | _others] = failed, merged) do
    reasons = for {island, error} <- failed, do: "#{inspect(island)}: #{Exception.message(error)}"
    what = "islands without their elites (#{length(failed)} of #{length(failed) + merged})"
    details = %{what: what, reason: Enum.join(reasons, "; "), merged: merged, failed: failed}
    %Error{kind: kind, op: :merge, details: details}
  end

  defp call(island, request, timeout \\ @call_ms) do
    Options.server?(island) ||
      Options.argument!("island", island, "the pid or the name of an island")

    GenServer.call(island, request, timeout)
  catch
    :exit, {:timeout, _call} ->
      details = %{what: "the answer of the island", deadline_ms: timeout}
      {:error, %Error{kind: :deadline, op: :island, details: details}}

    :exit, _gone ->
      {:error, %Error{kind: :cancelled, op: :island}}
  end

  @impl true
  def init({search, opts}) do
    scope = Group.join({__MODULE__, opts.group}, self())
    for other <- others(opts.group), do: send(other, {:hello, self()})
    send(self(), :round)

    {:ok,
     %{
       search: search,
       opts: opts,
       scope: scope,
       generation: 0,
       round: 0,
       progress: nil,
       sent: 0,
       withheld: 0,
       outboxes: %{},
       received: 0,
       stored: 0,
       refused: 0,
       error: nil,
       waiting: []
     }}
  end

  defp members(group), do: Group.members({__MODULE__, group})
  defp others(group), do: List.delete(members(group), self())

  @impl true
  def handle_call(:info, _from, state) do
    keys = [:generation, :progress, :sent, :withheld, :received, :stored, :refused, :error]
    {:reply, Map.take(state, keys), state}
  end

  def handle_call(:elites, _from, state), do: {:reply, elites(state.search.archive), state}

  def handle_call(:await, from, state) do
    if rests?(state),
      do: {:reply, ended(state), state},
      else: {:noreply, %{state | waiting: [from | state.waiting]}}
  end

  @impl true
  def handle_info(:round, state) do
    if rests?(state) do
      for from <- state.waiting, do: GenServer.reply(from, ended(state))
      {:noreply, %{state | waiting: []}}
    else
      state = state |> advance() |> migrate()
      # Messages that have arrived during the round are ahead of the next one.
      send(self(), :round)
      {:noreply, state}
    end
  end

  def handle_info({:hello, island}, state) when is_pid(island) do
    case elites(state.search.archive) do
      {:ok, elites} ->
        outbox = state.outboxes[island] || %Outbox{}
        {:noreply, dispatch(state, island, Outbox.fill(outbox, elites))}

      {:error, _error} ->
        {:noreply, state}
    end
  end

  def handle_info({:stored, island}, state) when is_map_key(state.outboxes, island),
    do: {:noreply, dispatch(state, island, Outbox.answered(state.outboxes[island]))}

  # The answer makes room for the next message, whether these elites fit or not.
  def handle_info({:migrants, elites, island}, state) when is_pid(island) do
    answer = handle_info({:migrants, elites}, state)
    send(island, {:stored, self()})
    answer
  end

  def handle_info({:migrants, [solutions, objectives, measures]}, state)
      when is_binary(solutions) and is_binary(objectives) and is_binary(measures) do
    case add(state.search.archive, [solutions, objectives, measures]) do
      {:ok, stored} ->
        received = state.received + div(byte_size(objectives), 8)
        {:noreply, %{state | received: received, stored: state.stored + stored}}

      {:error, _misfit} ->
        {:noreply, %{state | refused: state.refused + 1}}
    end
  end

  # The scope of the groups has crashed and lost its members. Joining is retried until the scope runs again.
  def handle_info({:DOWN, scope, :process, _scope, _reason}, %{scope: scope} = state) do
    Process.send_after(self(), {:join, scope}, @rejoin_ms)
    {:noreply, state}
  end

  def handle_info({:join, scope}, %{scope: scope} = state),
    do: {:noreply, %{state | scope: Group.join({__MODULE__, state.opts.group}, self())}}

  defp rests?(%{error: error}) when error != nil, do: true
  defp rests?(%{opts: %{generations: nil}}), do: false
  defp rests?(state), do: state.generation >= state.opts.generations

  defp ended(%{error: nil}), do: :ok
  defp ended(%{error: error}), do: {:error, error}

  defp advance(state) do
    left = if most = state.opts.generations, do: most - state.generation, else: state.opts.every
    count = min(state.opts.every, left)

    case patiently(fn -> Search.run(state.search, count) end) do
      {:ok, progress} -> %{state | generation: state.generation + count, progress: progress}
      {:error, error} -> %{state | error: error}
    end
  end

  # To each island in turn.
  defp migrate(state) do
    case Enum.sort(others(state.opts.group)) do
      [] ->
        %{state | round: state.round + 1}

      others ->
        other = Enum.at(others, rem(state.round, length(others)))
        %{opts: %{migrants: count, seed: seed}, search: %{archive: archive}} = state
        # Streams of rounds do not overlap.
        seed = rem(seed * 0x9E3779B97F4A7C15 + state.round, 2 ** 64)
        sample = &Native.archive_sample(archive.ref, &1, count, seed)

        case patiently(fn -> Call.in_background(sample) end) do
          {:ok, [solutions, objectives, measures, _cells]} ->
            state = living(%{state | round: state.round + 1}, others)
            offer(state, other, [solutions, objectives, measures])

          # An archive without an elite has no migrants yet.
          {:error, _empty} ->
            %{state | round: state.round + 1}
        end
    end
  end

  # Outboxes of islands that have left the group are dropped.
  defp living(state, others), do: %{state | outboxes: Map.take(state.outboxes, others)}

  defp offer(state, other, elites) do
    case Outbox.offer(state.outboxes[other] || %Outbox{}, elites) do
      :withheld -> withheld(%{state | withheld: state.withheld + state.opts.migrants})
      sent -> dispatch(%{state | sent: state.sent + state.opts.migrants}, other, sent)
    end
  end

  # The row of the table for a network that takes no more.
  defp withheld(state) do
    Pressure.tell(@pressure, Pressure.event(@pressure, :memory, :skip, nil))
    state
  end

  defp dispatch(state, island, {messages, outbox}) do
    for elites <- messages, do: send(island, {:migrants, elites, self()})
    put_in(state.outboxes[island], outbox)
  end

  defp elites(archive) do
    with {:ok, [solutions, objectives, measures, _cells]} <-
           patiently(fn -> Call.in_background(&Native.archive_elites(archive.ref, &1)) end),
         do: {:ok, [solutions, objectives, measures]}
  end

  defp add(archive, elites) do
    with {:ok, [status, _improvements]} <-
           patiently(fn -> Call.in_background(&Native.archive_add(archive.ref, &1, elites)) end),
         do: {:ok, Enum.count(:binary.bin_to_list(status), &(&1 > 0))}
  end

  # Someone else may look at the archive.
  defp patiently(work) do
    with {:error, %Error{kind: :busy}} <- work.() do
      Process.sleep(1)
      patiently(work)
    end
  end
end
