defmodule Sconce.OddTermsTest do
  # Calls each public function of each public module with an odd term in place of each argument and each option.
  #
  # Allowed outcomes are a value, `{:error, %Sconce.Error{}}`, a raised `Sconce.Error` (streams and bangs), or an
  # `ArgumentError` whose message names the wrong argument. `FunctionClauseError` is allowed for structs and maps that
  # Sconce makes (policies, sessions, reports, events): it must name the called function, and no inner one. All other
  # outcomes are failures: errors of the VM, NIFs, protocols and matches, exits, and calls that do not return.
  use ExUnit.Case, async: true

  # A machine under load is slow.
  @moduletag timeout: 300_000

  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.{
    Bot,
    Compress,
    Corpus,
    Device,
    Env,
    Error,
    HRR,
    Leader,
    League,
    Monitor,
    Net,
    Policy,
    PPO,
    Preset,
    Rollout,
    Serving,
    Session,
    Store,
    Trainer,
    Tuner,
    Zoo
  }

  alias Sconce.Compat.ExPhil.Agent
  alias Sconce.Env.{Billiards, CartPole}
  alias Sconce.Evolve.{Archive, Neat, Population, Search, Strategy}
  alias Sconce.Monitor.Snapshot
  alias Sconce.Policy.Spec
  alias Sconce.Pressure.Aimd
  alias Sconce.Test.MeleeStates
  alias Sconce.Trainer.{Compare, Curve, Gradients, Progress, RangeTest, Report}

  # A longer call counts as a hang. Beside builds, a call of a second took ten.
  @patience_ms 30_000
  @spec_options [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8]] ++
                  [heads: [fire: {:bernoulli, 1}]]
  # No user can create this folder.
  @game Sconce.Game.new!(name: :g, fields: [x: :number], input: [go: {:choice, 2}])
  @net [input: [1], layers: [{:dense, 1, bias: false}]]
  @nowhere "/proc/no/\e[2Jsuch\u202Efolder"

  setup_all do
    dir = tmp_dir!("odd-terms")
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    game = {for(t <- 1..40, do: [t / 40, 0.0]), for(t <- 1..40, do: rem(t, 2))}
    corpus = Path.join(dir, "corpus")
    heads = [fire: {:bernoulli, 1}]
    {:ok, corpus} = Corpus.build({:vector, 2}, [game, game], into: corpus, heads: heads)
    {run, report} = train(corpus, Path.join(dir, "run"))
    {:ok, env} = Env.new(:cart_pole)
    {:ok, shot} = Billiards.shot(1, power: 0.1)
    {:ok, gradients} = Trainer.gradients(report.out)
    {play, played} = learn(Path.join(dir, "play"))
    {:ok, valued} = Policy.init(@spec_options ++ [value_head: true], seed: 1)
    # Unlike a run, these would outlive the module's process.
    serving = start_supervised!({Serving, policy: valued})
    rollout = start_supervised!({Rollout, serving: serving})
    bot = start_supervised!({Bot, policy: policy, name: __MODULE__.Bot})
    exphil = [policy_path: "test/golden/exphil/mlp_small.bin"]
    agent = start_supervised!({Agent, exphil})
    {:ok, league} = League.play([:idle, :mixer], env: :duel, games: 2)
    endpoint = start_supervised!({Monitor.Endpoint, port: 0})
    alone = [name: :odd_terms_leader, members: [node()], lease_ms: 60_000]
    leader = start_supervised!({Leader, alone})
    {:ok, counter} = Monitor.counter("odd_terms_test_total")
    {:ok, gauge} = Monitor.gauge("odd_terms_test")
    {:ok, histogram} = Monitor.histogram("odd_terms_test_times")

    cells = [cells: {:grid, [4, 4]}, ranges: [{0, 1}, {0, 1}], solution_size: 2]
    {:ok, archive} = Archive.new(cells)
    {:ok, _added} = Archive.add(archive, [[1.0, 2.0]], [0.5], [[0.3, 0.4]])
    {:ok, strategy} = Strategy.new([0.0, 1.0], population: 4)
    small = Population.spec(:cart_pole, hidden_sizes: [2])
    {:ok, population} = Population.new(small, count: 3)
    {:ok, solved} = Population.policy(small, List.duplicate(0.5, population.size))
    {:ok, search} = Search.new(small, :cart_pole, source: :snes, batch: 4)

    {:ok, evolving} =
      Sconce.Evolve.Run.start_link(search, out: Path.join(dir, "evolve"), generations: 2)

    {:ok, evolved} = Sconce.Evolve.Run.await(evolving)
    size = Search.size(small)
    {:ok, searched} = Archive.new(cells: {:grid, [4]}, ranges: [{0, 500}], solution_size: size)
    own = [archive: searched, batch: 4, measures: [:length]]
    {:ok, searching} = Search.new(small, :cart_pole, own)
    {:ok, island} = Sconce.Evolve.Island.start_link(searching, group: :odd_terms, generations: 1)
    {:ok, store} = Store.open(Path.join(dir, "store"))
    :ok = Store.put(store, "a", [1])
    {:ok, closed} = Store.open(Path.join(dir, "closed"))
    {:ok, vectors} = HRR.atoms(2, 16)
    {:ok, net} = Net.init(@net)
    {:ok, neat} = Neat.new(inputs: 1, outputs: 1, population: 4)
    {:ok, genome} = Neat.genome(neat, 0)

    range = [corpus: corpus, num_it: 3, batch_size: 2, window_size: 4, threads: 1]
    {:ok, range} = Trainer.find_learning_rate(policy.spec, range)

    {:ok,
     %{
       agent: agent,
       dir: dir,
       policy: policy,
       corpus: corpus,
       env: env,
       shot: shot,
       run: run,
       report: report,
       play: play,
       played: played,
       league: league,
       bot: bot,
       serving: serving,
       rollout: rollout,
       gradients: gradients,
       range: range,
       archive: archive,
       strategy: strategy,
       population: population,
       net: net,
       solved: solved,
       search: search,
       evolving: evolving,
       evolved: evolved,
       searching: searching,
       island: island,
       leader: leader,
       vectors: vectors,
       store: store,
       closed: closed,
       neat: neat,
       genome: genome,
       endpoint: endpoint,
       counter: counter,
       gauge: gauge,
       histogram: histogram
     }}
  end

  defp train(corpus, out) do
    options = [corpus: corpus, out: out, steps: 4, batch_size: 2, window_size: 4, val_split: 0.5]
    options = options ++ [gradient_report: 1, threads: 1, backbone: :mlp, hidden_sizes: [8]]
    # The run is linked to the module's process, which ends with the tests.
    {:ok, run} = Trainer.start_link(options)
    {:ok, report} = Trainer.await(run)
    {run, report}
  end

  defp learn(out) do
    small = [environments: 4, rollout_steps: 8, minibatches: 2, hidden_sizes: [8], steps: 64]
    {:ok, run} = PPO.start_link([env: :cart_pole, out: out, threads: 1] ++ small)
    {:ok, report} = PPO.await(run)
    {run, report}
  end

  # Valid arguments of each function, at its largest arity. `:session` and `:serving` stand for ones that the calling
  # process owns.
  defp rows(%{policy: policy, corpus: corpus, run: run, report: report, env: env} = context) do
    out = Path.join(context.dir, "written")
    spec = policy.spec
    frame = [0.1, 0.2]
    training = [corpus: @nowhere, out: @nowhere]
    %{play: play, played: played} = context
    melee = MeleeStates.state(0)

    [
      {Sconce.Compat, :compare, [policy, @nowhere]},
      {Compress, :dequantise, [quantised()]},
      {Compress, :distillation_loss, [[[0.1, 0.2]], [[0.3, 0.4]], [target: [0]]]},
      {Compress, :fake_quantise, [[[0.1, 0.2]], [bits: 4]]},
      {Compress, :gptq, [[[0.1, 0.2]], [[1.0, 2.0]], [bits: 4]]},
      {Compress, :low_rank, [[[0.1, 0.2]], [rank: 1]]},
      {Compress, :prune, [[[0.1, 0.2]], [sparsity: 0.5]]},
      {Compress, :prune_structured, [[[0.1, 0.2]], [sparsity: 0.5, axis: :columns]]},
      {Compress, :prune_two_four, [[[0.1, 0.2, 0.3, 0.4]]]},
      {Compress, :quantise, [[[0.1, 0.2]], [bits: 4]]},
      {Compress, :search, [policy, corpus, [within: {:nll, 0.1}]]},
      {Compress, :smooth, [[[0.1, 0.2]], [1.0, 2.0], [alpha: 0.5]]},
      {Compress, :sparsity_at, [1, [steps: 2, to: 0.5]]},
      {Compress.Policy, :average, [[policy, policy], [weights: [1.0, 2.0]]]},
      {Compress.Policy, :low_rank, [policy, [rank: 4]]},
      {Compress.Policy, :mix, [policy, []]},
      {Compress.Policy, :prune, [policy, [pattern: :two_four]]},
      {Compress.Policy, :quantise, [policy, [bits: 4]]},
      {Compress.Policy, :shrink, [policy, [keep: 0.5]]},
      {Compress.Search, :svg, [searched(policy)]},
      {Sconce.Config, :fetch, [:threads]},
      {Sconce.Config, :get, [:threads]},
      {Corpus, :build, [{:vector, 2}, [], [into: out <> ".corpus", heads: [a: {:bernoulli, 1}]]]},
      {Corpus, :character, [1]},
      {Corpus, :character_id, ["Fox"]},
      {Corpus, :games, [corpus]},
      {Corpus, :import, [@nowhere, [into: out <> ".import"]]},
      {Corpus, :info, [corpus]},
      {Corpus, :open, [corpus.dir]},
      {Corpus, :recording, [corpus, 0, 0]},
      {Corpus, :stage_id, ["Battlefield"]},
      {Corpus, :verify, [corpus.dir, []]},
      {Device, :resolve, [:cpu, %{what: "device"}]},
      {Sconce.Embedding, :embed, [{:vector, 2}, frame, [as: :auto]]},
      {Sconce.Embedding, :new!, [{:vector, 2}]},
      {Sconce.Embedding, :pack, [{:vector, 2}, frame]},
      {Sconce.Embedding, :print_schema, [:melee]},
      {Sconce.Embedding, :schema, [:melee]},
      {Env, :advance, [env]},
      {Env, :episodes, [env]},
      {Env, :new, [:cart_pole, [count: 1]]},
      {Env, :play, [policy, :cart_pole, [episodes: 1]]},
      {Env, :png, [env, 0]},
      {Env, :put, [env, [0]]},
      {Env, :read, [env, :reward]},
      {Env, :reset, [env, [seed: 1]]},
      {Env, :spec, [:cart_pole, [time_limit: 1]]},
      {Env, :state, [env, 0]},
      {Env, :step, [env, [0]]},
      {Env, :steps, [env]},
      {Env, :trace, [policy, :cart_pole, [episodes: 1]]},
      {Sconce.Votes, :tally, [[[0, 1], [1]], [choices: 2, share: 0.5]]},
      {Store, :close, [context.closed]},
      {Store, :commit, [context.store]},
      {Store, :compact, [context.store, [share: 0.5]]},
      {Store, :delete, [context.store, "none", [commit: false]]},
      {Store, :get, [context.store, "a", [rows: {0, 1}, stream: 1]]},
      {Store, :info, [context.store, "a"]},
      {Store, :names, [context.store]},
      {Store, :open, [@nowhere, [ram: 1, cold: :int8]]},
      {Store, :put, [context.store, "b", [1], [commit: false, lossy: true]]},
      {Store, :put_all, [context.store, %{"b" => [1]}, [commit: false, lossy: true]]},
      {Store, :refresh, [context.store]},
      {Store, :stats, [context.store]},
      {Store, :verify, [context.store]},
      {Archive, :add, [context.archive, [[1.0, 2.0]], [0.5], [[0.3, 0.4]]]},
      {Archive, :best, [context.archive]},
      {Archive, :compress, [context.archive, [cells: {:grid, [2, 2]}, ranges: [{0, 1}, {0, 1}]]]},
      {Archive, :elites, [context.archive]},
      {Archive, :load, [@nowhere, []]},
      {Archive, :merge, [context.archive, context.archive]},
      {Archive, :new, [[cells: {:grid, [4]}, ranges: [{0.0, 1.0}], solution_size: 2]]},
      {Archive, :novelty, [context.archive, [[0.3, 0.4]], [nearest: 2]]},
      {Archive, :prune, [context.archive, 0.1]},
      {Archive, :retrieve, [context.archive, [[0.3, 0.4]]]},
      {Archive, :sample, [context.archive, 2, [seed: 1]]},
      {Archive, :save, [context.archive, @nowhere]},
      {Archive, :stats, [context.archive]},
      {Archive, :svg, [context.archive, []]},
      {Archive, :vary, [context.archive, 2, [seed: 1]]},
      {Archive, :write, [context.archive, @nowhere, []]},
      {Sconce.Pressure, :decide, [Sconce.Pressure.new(:train), :memory, []]},
      {Sconce.Pressure, :failed, [%Error{kind: :deadline, op: :act}]},
      {Sconce.Pressure, :new, [:train, [grow_after: 2]]},
      {Sconce.Pressure, :room, [[{1, 2}, {2, 3}], 5]},
      {Sconce.Pressure, :run, [Sconce.Pressure.new(:train), 4, &{:ok, &1}]},
      {Sconce.Pressure, :went_well, [Sconce.Pressure.new(:train)]},
      {Aimd, :new, [[objective: 1.0]]},
      {Aimd, :observe, [Aimd.new(objective: 1.0), [1.0], 1]},
      {Sconce.Evolve.Progress, :follow, [context.evolving, [terminal: false]]},
      {Sconce.Evolve.Progress, :new, [[terminal: false]]},
      {Sconce.Evolve.Progress, :summary, [context.evolved]},
      {Sconce.Evolve.Progress, :write,
       [Sconce.Evolve.Progress.new(terminal: false), %{event: :done}]},
      {Sconce.Evolve.Run, :await, [context.evolving, 10]},
      {Sconce.Evolve.Run, :info, [context.evolving]},
      {Sconce.Evolve.Run, :start_link, [context.search, [out: @nowhere, generations: 1]]},
      {Sconce.Evolve.Run, :stop, [context.evolving]},
      {Sconce.Evolve.Run, :subscribe, [context.evolving]},
      {Sconce.Evolve.Island, :await, [context.island, 10]},
      {Sconce.Evolve.Island, :info, [context.island]},
      {Sconce.Evolve.Island, :merge, [:odd_terms, context.archive]},
      {Sconce.Evolve.Island, :start_link,
       [context.searching, [group: :odd_terms, generations: 1]]},
      {Population, :episodes, [context.population, :cart_pole, [measures: [:length]]]},
      {Population, :forward, [context.population, [0.1, 0.2, 0.3, 0.4]]},
      {Population, :new, [spec, [count: 2, sigma: 0.1]]},
      {Population, :policy, [context.solved.spec, List.duplicate(0.5, context.population.size)]},
      {Population, :read, [context.population, [0, 2]]},
      {Population, :solution, [context.solved, [as: :binaries]]},
      {Population, :spec, [:cart_pole, [hidden_sizes: [2]]]},
      {Population, :vary, [context.population, [iso_sigma: 0.1]]},
      {Population, :write,
       [context.population, 1, [List.duplicate(0.5, context.population.size)]]},
      {Search, :new, [context.solved.spec, :cart_pole, [source: :snes, batch: 4]]},
      {Search, :plan, [context.search, 3]},
      {Search, :policy, [context.search]},
      {Search, :resume, [context.search, @nowhere]},
      {Search, :run, [context.search, 1]},
      {Search, :save, [context.search, @nowhere]},
      {Search, :size, [context.solved.spec]},
      {Search, :sweep, [fn _batch -> {:ok, context.search} end, [4], 0.01]},
      {Neat, :best, [context.neat]},
      {Neat, :distance, [context.genome, context.genome, [rule: :paper]]},
      {Neat, :fit, [context.neat, [[0.5]], [[1.0]], [generations: 2]]},
      {Neat, :forward, [context.neat, [[0.5]]]},
      {Neat, :genome, [context.neat, 0]},
      {Neat, :load, [@nowhere, []]},
      {Neat, :new, [[inputs: 1, outputs: 1, population: 4]]},
      {Neat, :run, [context.genome, [[0.5]], [as: :lists]]},
      {Neat, :save, [context.neat, @nowhere]},
      {Neat, :stats, [context.neat]},
      {Neat, :svg, [context.genome, []]},
      {Neat, :tell, [context.neat, [0.0, 1.0, 0.5, 0.2]]},
      {Neat, :write, [context.genome, @nowhere, []]},
      {Strategy, :ask, [context.strategy]},
      {Strategy, :best, [context.strategy]},
      {Strategy, :info, [context.strategy]},
      {Strategy, :load, [@nowhere, []]},
      {Strategy, :mean, [context.strategy]},
      {Strategy, :new, [[0.0, 1.0], [sigma: 0.5]]},
      {Strategy, :save, [context.strategy, @nowhere]},
      {Strategy, :tell, [context.strategy, [0.0, 1.0, 0.5, 0.2]]},
      {Billiards, :shot, [1, [power: 0.1]]},
      {Billiards, :svg, [context.shot]},
      {HRR, :at, [context.vectors, context.vectors, [0.0]]},
      {HRR, :atoms, [2, 16, [seed: 1]]},
      {HRR, :bind, [context.vectors, context.vectors]},
      {HRR, :cleanup, [context.vectors, context.vectors]},
      {HRR, :concat, [[context.vectors]]},
      {HRR, :from_tensor, [[[1, 2, 3, 4, 5, 6, 7, 8]], []]},
      {HRR, :in_domain, [context.vectors, :time]},
      {HRR, :normalise, [context.vectors]},
      {HRR, :on, [context.vectors, :cpu]},
      {HRR, :permute, [context.vectors, 1]},
      {HRR, :power, [context.vectors, [1.0]]},
      {HRR, :project, [[[1, 2]], 16, [seed: 1]]},
      {HRR, :quantise, [context.vectors]},
      {HRR, :sequence, [context.vectors, context.vectors, [length: 1]]},
      {HRR, :similarity, [context.vectors, context.vectors]},
      {HRR, :superpose, [context.vectors, [group: 1]]},
      {HRR, :take, [context.vectors, [0]]},
      {HRR, :to_tensor, [context.vectors]},
      {HRR, :unbind, [context.vectors, context.vectors, [exact: true]]},
      {HRR, :unitary, [context.vectors]},
      {Net.Spec, :image, [[1, 8, 8], 4]},
      {Net, :evaluate, [context.net, [[0.0]], [0], [loss: :cross_entropy]]},
      {Net, :fit, [context.net, [[0.0]], [0], [steps: 1]]},
      {Net, :from_weights, [@net, %{"layers.0.weight" => [[1]]}, [storage: :f32]]},
      {Net, :info, [context.net]},
      {Net, :init, [@net, [seed: 1]]},
      {Net, :load, [@nowhere, [storage: :f32]]},
      {Net, :new, [@net]},
      {Net, :outline, [@net]},
      {Net, :run, [context.net, [0.0]]},
      {Net, :save, [context.net, @nowhere]},
      {Net, :summary, [@net]},
      {Net, :weights, [context.net, [as: :lists]]},
      {Net.Spec, :new, [@net]},
      {Tuner, :choose, [{:odd, 1}, [a: 1, b: 2], fn us -> {:ok, us} end, [rounds: 1]]},
      {Zoo, :init, [:anomaly_detect, [seed: 1]]},
      {Zoo, :names, [:vision]},
      {Zoo, :spec, [:anomaly_detect]},
      {CartPole, :corpus, [[], [into: out <> ".cart"]]},
      {CartPole, :demonstrations, [[games: 1]]},
      {CartPole, :play, [policy, [episodes: 1]]},
      {Sconce.Dagger, :append,
       [out <> ".met", [[%{x: 1}]], fn _frame -> %{go: 1} end, [game: @game]]},
      {Sconce.Dagger, :relabel, [[%{x: 1}], fn _frame -> %{go: 1} end, [game: @game]]},
      {Sconce.Events, :split, [%{event: :done}]},
      {Sconce.Frame, :pack, [%{}]},
      {Sconce.Frame, :unpack, [<<0.0::float-32>>]},
      {Sconce.GPU, :check_checkpoint_size_warning, [[]]},
      {Sconce.GPU, :check_free_memory, [[], 0]},
      {Sconce.GPU, :check_memory_warning, [[], 0]},
      {Sconce.GPU, :clocks, [0]},
      {Sconce.GPU, :count_params, [policy]},
      {Sconce.GPU, :device_info, [0]},
      {Sconce.GPU, :device_name, [0]},
      {Sconce.GPU, :diagnose_cuda, [[]]},
      {Sconce.GPU, :estimate_checkpoint_size, [[]]},
      {Sconce.GPU, :estimate_memory_mb, [[]]},
      {Sconce.GPU, :format_mb, [0]},
      {Sconce.GPU, :get_memory_info, [0]},
      {Sconce.GPU, :ledger, [:cuda]},
      {Sconce.GPU, :memory_status, [0]},
      {Sconce.GPU, :memory_status_string, [0]},
      {Sconce.GPU, :power, [0]},
      {Sconce.GPU, :processes, [0]},
      {Sconce.GPU, :release, [:cuda]},
      {Sconce.GPU, :temperature, [0]},
      {Sconce.GPU, :throttling, [0]},
      {Sconce.GPU, :utilization, [0]},
      {Sconce.GPU.Ledger, :taken, [%Sconce.GPU.Ledger{device: "cuda:0", total: 1}]},
      {Sconce.Game, :columns, [@game]},
      {Sconce.Game, :new!, [[name: :g, fields: [x: :number], input: [go: {:choice, 2}]]]},
      {Sconce.Game, :of!, [@game]},
      {Sconce.Loader, :info, [corpus, [window_size: 4]]},
      {Sconce.Loader, :prefetch, [%{flow: %{stream: make_ref()}}, 2]},
      {Sconce.Loader, :stream, [corpus, [window_size: 4, as: :binaries]]},
      {Leader, :await, [context.leader, 10]},
      {Leader, :leader, [context.leader]},
      {Leader, :leading?, [context.leader]},
      {Leader, :resign, [context.leader]},
      {Leader, :start_link, [[name: :odd_terms_voter, members: [node()], candidate: false]]},
      {Leader, :status, [context.leader]},
      {Leader, :subscribe, [context.leader]},
      {Leader, :term, [context.leader]},
      {Monitor, :add, [context.counter, 1]},
      {Monitor, :counter, ["odd_terms_total", []]},
      {Monitor, :gauge, ["odd_terms", []]},
      {Monitor, :histogram, ["odd_terms_times", []]},
      {Monitor, :record, [context.histogram, 1]},
      {Monitor, :set, [context.gauge, 1]},
      {Monitor, :trace, [fn -> 1 end, []]},
      {Monitor.Endpoint, :port, [context.endpoint]},
      {Monitor.Endpoint, :start_link, [[port: 0]]},
      {Sconce.Options, :docs, [[a: [type: :atom]]]},
      {Sconce.Options, :known!, [:a, [:a], "option"]},
      {Sconce.Options, :nearest, [:a, [:b]]},
      {Sconce.Options, :validate!, [[a: 1], [a: [type: :integer]]]},
      {Sconce.Onnx, :export, [policy, @nowhere, []]},
      {Sconce.Nx, :batches, [corpus, [window_size: 4]]},
      {Sconce.Nx, :serving, [policy, [window_size: 4]]},
      {Policy, :export, [policy, :axon, nil]},
      {Policy, :forward, [policy, [[frame]], []]},
      {Policy, :import, [@nowhere, []]},
      {Policy, :info, [policy]},
      {Policy, :init, [spec, []]},
      {Policy, :load, [@nowhere, []]},
      {Policy, :put_weights, [policy, %{"heads.fire_logits.bias" => [0.0]}]},
      {Policy, :save, [policy, @nowhere, []]},
      {Policy, :step, [policy, [frame], []]},
      {Policy, :to, [policy, :cpu]},
      {Policy, :weight, [policy, "fire"]},
      {Policy, :weights, [policy, [as: :shapes]]},
      {Spec, :controller?, [spec]},
      {Spec, :new, [@spec_options]},
      {Preset, :check, [Preset.get(:quick)]},
      {Preset, :get, [:quick]},
      {Preset, :merge, [Preset.get(:quick), []]},
      {Serving, :drain, [:serving, 0]},
      {Serving, :forward, [:serving, [[frame]], nil, [deadline_ms: 5_000]]},
      {Serving, :info, [:serving]},
      {Serving, :limit, [:serving, 4]},
      {Serving, :members, [:group]},
      {Serving, :open, [:serving, []]},
      {Serving, :start_link, [[policy: policy]]},
      {Serving, :stats, [:serving]},
      {Serving, :stop, [:serving]},
      {Serving, :swap, [:serving, policy]},
      {Session, :act, [:session, frame, []]},
      {Session, :act_many, [[], []]},
      {Session, :close, [:session]},
      {Session, :info, [:session]},
      {Session, :open, [policy, []]},
      {Session, :reset, [:session, []]},
      {Session, :restore, [:session, ""]},
      {Session, :rollback, [:session, 0]},
      {Session, :snapshot, [:session]},
      {Session, :transfer, [:session, self()]},
      {Snapshot, :life, [snapshot(), 1]},
      {Snapshot, :list, [@nowhere]},
      {Snapshot, :open, [@nowhere]},
      {Snapshot, :rate, [snapshot(), snapshot(), "a"]},
      {Snapshot, :summary, [snapshot(), "a", snapshot()]},
      {Snapshot, :value, [snapshot(), "a"]},
      {Sconce.Temporal, :options, [:gru, nil]},
      {Sconce.Temporal, :taps, [:gru, nil]},
      {Trainer, :await, [run, 0]},
      {Trainer, :evaluate, [@nowhere, corpus, []]},
      {Trainer, :find_learning_rate, [nil, [corpus: @nowhere]]},
      {Trainer, :gradients, [report.out]},
      {Trainer, :info, [run]},
      {Trainer, :plan, [nil, [corpus: @nowhere]]},
      {Trainer, :report, [report.out]},
      {Trainer, :start_link, [training]},
      {Trainer, :stop, [run]},
      {Trainer, :subscribe, [run]},
      {Trainer, :tune, [nil, [corpus: @nowhere]]},
      {Compare, :differences, [[report]]},
      {Compare, :load, [[report.out]]},
      {Compare, :svg, [[%{name: "a", report: report}]]},
      {Compare, :table, [[%{name: "a", report: report}]]},
      {Compare, :write, [[%{name: "a", report: report}], @nowhere]},
      {Curve, :points, [report, :nll]},
      {Curve, :svg, [report, []]},
      {Curve, :text, [report, 20, 4]},
      {Curve, :write, [report, @nowhere, []]},
      {Gradients, :svg, [context.gradients, []]},
      {Gradients, :write, [context.gradients, @nowhere, []]},
      {Progress, :follow, [run, []]},
      {Progress, :new, [[]]},
      {Progress, :printer, [[]]},
      {Progress, :write, [Progress.new(), %{event: :done}]},
      {RangeTest, :svg, [context.range]},
      {RangeTest, :write, [context.range, @nowhere]},
      {Report, :format, [report]},
      {Report, :title, [spec, 100]},
      {Agent, :configure, [context.agent, [deterministic: true]]},
      {Agent, :get_action, [context.agent, melee, [player_port: 1]]},
      {Agent, :get_action_with_confidence, [context.agent, melee, [player_port: 1]]},
      {Agent, :get_config, [context.agent]},
      {Agent, :get_controller, [context.agent, melee, [player_port: 1]]},
      {Agent, :get_controller_with_confidence, [context.agent, melee, [player_port: 1]]},
      {Agent, :load_policy, [context.agent, @nowhere]},
      {Agent, :reset_buffer, [context.agent]},
      {Agent, :restore_state, [context.agent, "no snapshot"]},
      {Agent, :snapshot_state, [context.agent]},
      {Agent, :start_link, [[deterministic: true]]},
      {Agent, :warmed_up?, [context.agent]},
      {Agent, :warmup, [context.agent]},
      {Bot, :games, [context.bot]},
      {Bot, :info, [context.bot]},
      {Bot, :load, [context.bot, @nowhere]},
      {Bot, :over, [context.bot]},
      {Bot, :start_link, [[policy: policy]]},
      {Bot, :step, [context.bot, {0, [0.5, 0.5]}, 1_000]},
      {Sconce.Compat.Melee, :controller, [Sconce.Compat.Melee.neutral(), :libmelee]},
      {Sconce.Compat.Melee, :frame, [MeleeStates.state(0), 1, []]},
      {Sconce.Compat.Melee, :observed, [MeleeStates.state(0).players[1]]},
      {Sconce.Compat.Melee, :phase, [MeleeStates.state(0)]},
      {Sconce.Compat.Melee, :port, [MeleeStates.state(0), 1]},
      {Sconce.Compat.Melee, :recognised?, [MeleeStates.state(0)]},
      {League, :play, [[:idle, :mixer], [env: :duel, games: 2]]},
      {League, :difference, [context.league, "idle", "mixer"]},
      {League, :groups, [context.league]},
      {League, :ranking, [context.league]},
      {League, :rate, [[{"a", "b", :win}], [label: "x"]]},
      {League, :svg, [context.league]},
      {League, :table, [context.league]},
      {League, :write, [context.league, @nowhere]},
      {PPO, :await, [play, 0]},
      {PPO, :info, [play]},
      {PPO, :plan, [[env: :cart_pole, policy: @nowhere]]},
      {PPO, :report, [played.out]},
      {PPO, :start_link, [[env: :cart_pole, out: @nowhere]]},
      {PPO, :stop, [play]},
      {PPO, :subscribe, [play]},
      # Without the checkpoint this function measures real steps.
      {PPO, :tune, [[env: :cart_pole, policy: @nowhere, max: 1, rollout_steps: 8]]},
      {PPO.Curve, :points, [played, :mean_return]},
      {PPO.Curve, :svg, [played]},
      {PPO.Curve, :text, [played, 20, 4]},
      {PPO.Curve, :write, [played, @nowhere]},
      {PPO.Progress, :follow, [play, []]},
      {PPO.Progress, :new, [[]]},
      {PPO.Progress, :write, [PPO.Progress.new(), %{event: :done}]},
      {Sconce.Report, :add, [Sconce.Report.new(), melee_frame()]},
      {Sconce.Report, :conversions, [reported()]},
      {Sconce.Report, :finish, [Sconce.Report.new()]},
      {Sconce.Report, :games, [corpus, [games: [0]]]},
      {Sconce.Report, :new, [[players: {"a", "b"}]]},
      {Sconce.Report, :of_corpus, [corpus, 0, [player: 1]]},
      {Sconce.Report, :sum, [[reported()], [by: :name]]},
      {Sconce.Report, :svg, [reported()]},
      {Sconce.Report, :text, [reported()]},
      {Sconce.Report, :write, [reported(), @nowhere]},
      {Rollout, :done, [:session, :terminated, nil]},
      {Rollout, :info, [context.rollout]},
      {Rollout, :open, [context.rollout, []]},
      {Rollout, :reward, [:session, 1.0, []]},
      {Rollout, :start_link, [[serving: context.serving]]}
    ]
  end

  defp snapshot do
    times = [started_ms: 0, heartbeat_ms: 0, read_us: 0]

    struct!(
      Snapshot,
      [path: "a", kind: :run, id: "a", os_pid: 1, ticks: 0, state: :running] ++ times
    )
  end

  defp melee_frame do
    player = %{percent: 0, facing: 1, x: 0, y: 0, action: 14, character: 1, on_ground: true}
    player = Map.put(player, :stock, 4)
    %{own: player, opponent: player, stage: 31, frame: 1}
  end

  defp reported do
    {:ok, report} = Sconce.Report.add(Sconce.Report.new(), melee_frame())
    Sconce.Report.finish(report)
  end

  defp searched(policy) do
    point = %{nll: 1.0, bytes: 4096, us: 1.0, counts: %{32 => 1, 8 => 0, 4 => 0}}

    %Compress.Search{
      policy: policy,
      within: {:nll, 0.1},
      for: :bytes,
      bound: 1.1,
      base: point,
      chosen: point,
      points: [point],
      matrices: []
    }
  end

  defp quantised do
    {:ok, quantised} = Compress.quantise([[0.1, 0.2]])
    quantised
  end

  # Defined by `use GenServer`, which does not check its argument.
  @theirs [{Trainer, :child_spec, 1}, {PPO, :child_spec, 1}, {Rollout, :child_spec, 1}] ++
            [{Agent, :child_spec, 1}, {Bot, :child_spec, 1}] ++
            [{Monitor.Endpoint, :child_spec, 1}, {Sconce.Evolve.Island, :child_spec, 1}]

  test "each public function of each public module has a row here", context do
    rows = for {module, name, args} <- rows(context), do: {module, name, length(args)}
    assert Enum.sort(public() -- @theirs) == Enum.sort(rows)
  end

  test "an odd term in place of each argument ends in a value or a proper error",
       context do
    assert Enum.join(failures(context, &in_each_place/2), "\n") == ""
  end

  test "an odd term in place of each option ends in a value or a proper error", context do
    assert Enum.join(failures(context, &in_each_option/2), "\n") == ""
  end

  test "structs of another VM, or with other fields, end in a value or an error", context do
    assert Enum.join(failures(context, &in_each_struct/2), "\n") == ""
  end

  test "game states with an odd term in any part end in a value or an error", context do
    assert Enum.join(failures(context, &in_each_state/2), "\n") == ""
  end

  test "errors and policies that were built by hand can be printed", %{policy: policy} do
    for odd <- odd(),
        kind <- Error.kinds(),
        key <- [:what, :weights, :path, :differences, :mend] do
      details = %{key => odd, expected: odd, got: odd, reason: odd, bytes: odd, value: odd}
      error = %Error{kind: kind, op: odd, details: details}
      assert String.valid?(Exception.message(error))
      assert String.valid?(Exception.message(%{error | kind: odd, details: odd}))
    end

    for odd <- odd(), {field, _value} <- Map.from_struct(policy) do
      assert policy |> Map.put(field, odd) |> inspect() |> is_binary()
    end
  end

  defp public do
    {:ok, modules} = :application.get_key(:sconce, :modules)

    for module <- modules,
        not String.starts_with?(inspect(module), ["Mix.", "Sconce.Test."]),
        Code.ensure_loaded?(module),
        {:docs_v1, _, _, _, moduledoc, _, docs} <- [Code.fetch_docs(module)],
        moduledoc not in [:hidden, :none],
        {{:function, name, arity}, _, _, doc, _} <- docs,
        doc != :hidden and arity > 0,
        do: {module, name, arity}
  end

  # A reference of another node, as in a policy that was sent from there.
  @foreign <<131, 90, 0, 3, 119, 11, "far@nowhere", 1::32, 1::32, 2::32, 3::32>>

  defp odd do
    dead = spawn(fn -> :ok end)

    [
      [1 | 2],
      [{:a, 1} | :b],
      [[1 | 2]],
      [{}],
      [[]],
      [nil],
      [],
      {},
      {:a, 1},
      {:ok, 1},
      {:group, 1},
      {:global, 1},
      {:via, :no_such_module, 1},
      {:vector, [1 | 2]},
      {:vector, -1},
      {:melee, [1 | 2]},
      {:melee, :a},
      {:cuda, [0 | 1]},
      {:cuda, -1},
      {:resync, 2 ** 70},
      {:int8, 2 ** 70},
      {:gru, [1 | 2]},
      {:gru, [{:a, 1}]},
      nil,
      true,
      :an_atom,
      2 ** 70,
      -(2 ** 70),
      2 ** 2000,
      -1,
      0.5,
      1.0e308,
      "",
      "\0",
      @nowhere,
      <<0xFF, 0xFE>>,
      <<1::3>>,
      String.duplicate("x", 5_000),
      %{},
      %{"a" => 1},
      %{{} => []},
      %{__struct__: :nothing},
      ~D[2026-01-01],
      make_ref(),
      :erlang.binary_to_term(@foreign),
      dead,
      fn -> :ok end,
      fn _, _, _ -> :ok end,
      Enum.reduce(1..200, [], fn _, deep -> [deep] end)
    ]
  end

  defp in_each_place(args, _docs) do
    for {_arg, place} <- Enum.with_index(args),
        odd <- [2 ** 40 | odd()],
        do: List.replace_at(args, place, odd)
  end

  # The options listed in the documentation of a function and of its module.
  defp in_each_option(_args, "Validates options against a schema" <> _), do: []

  defp in_each_option(args, docs) do
    names = for [_, name] <- Regex.scan(~r/^ *\* `:(\w+)` - /m, docs), do: name
    # Each option exists as an atom.
    names = names |> Enum.uniq() |> Enum.map(&String.to_existing_atom/1)

    for {[{_, _} | _] = given, place} <- Enum.with_index(options(args)),
        name <- names,
        odd <- odd(),
        # An empty folder name would write into the working directory; without a corpus real steps would be measured.
        {name, odd} not in [into: "", out: "", corpus: nil],
        do: List.replace_at(args, place, Keyword.put(Keyword.delete(given, :none), name, odd))
  end

  # The arguments, if the last one is a list of options.
  defp options(args) do
    case List.last(args) do
      [] -> List.replace_at(args, -1, none: nil)
      _given -> args
    end
  end

  # Replaces the fields that are invalid in another VM, and then the whole struct by an empty one.
  defp in_each_struct(args, _docs) do
    for {arg, place} <- Enum.with_index(args),
        %module{} = struct <- [made(arg)],
        odd <-
          for(
            field <- [:ref, :handle, :pid],
            is_map_key(struct, field),
            odd <- [make_ref(), nil, 5, "", [], {:a, 1}, :erlang.binary_to_term(@foreign)],
            do: {:with, arg, field, odd}
          ) ++ [struct(module)],
        do: List.replace_at(args, place, odd)
  end

  # The states of both libraries, whose structs are not loaded.
  defp in_each_state(args, _docs) do
    odd = [nil, [1 | 2], %{}, {:a, 1}, 5, -1, "x", 2 ** 2000, ~D[2026-01-01], fn -> :ok end]
    full = MeleeStates.full(0)

    for {arg, place} <- Enum.with_index(args),
        Sconce.Compat.Melee.recognised?(arg),
        state <- [full, MeleeStates.exphil(full)],
        state <- MeleeStates.odd(state, odd),
        do: List.replace_at(args, place, state)
  end

  defp made(:session), do: struct(Session)
  defp made(:serving), do: struct(Serving)
  # Game states, whose structs are of libraries that are not loaded, have a test of their own.
  defp made(%module{} = struct), do: if(Code.ensure_loaded?(module), do: struct)
  defp made(_other), do: nil

  # Calls each function in a process of its own and waits for it.
  defp failures(context, vary) do
    docs =
      Map.new(public(), fn {module, name, arity} ->
        {{module, name}, docs(module, name, arity)}
      end)

    context
    |> rows()
    |> Task.async_stream(
      fn {module, name, args} = row ->
        calls =
          for varied <- vary.(args, docs[{module, name}]), allowed?(name, varied), do: varied

        run(row, calls, context)
      end,
      timeout: :infinity,
      max_concurrency: 4
    )
    |> Enum.flat_map(fn {:ok, failures} -> failures end)
    # One failure of each kind is enough.
    |> Enum.uniq_by(fn {function, _call, outcome} -> {function, outcome} end)
    |> Enum.map(&inspect(&1, printable_limit: 200))
  end

  # These paths would search the working directory for replays.
  defp allowed?(:import, [paths | _]), do: paths not in ["", [[]], []] and not is_list(paths)
  # Without a corpus these functions measure real steps.
  defp allowed?(name, [_spec, []]) when name in [:tune, :plan], do: false
  defp allowed?(_name, _args), do: true

  defp docs(module, name, arity) do
    {:docs_v1, _, _, _, %{"en" => moduledoc}, _, docs} = Code.fetch_docs(module)
    texts = for {{:function, ^name, ^arity}, _, _, %{"en" => doc}, _} <- docs, do: doc
    Enum.join([moduledoc | texts], "\n")
  end

  defp run({module, name, args}, calls, context) do
    test = self()

    {pid, monitor} =
      spawn_monitor(fn ->
        # Processes that the call starts are linked to this one and may end first. Its output is discarded.
        Process.flag(:trap_exit, true)
        {:ok, device} = StringIO.open("")
        Process.group_leader(self(), device)

        for call <- calls do
          outcome = outcome(module, name, Enum.map(call, &own(&1, context)), args)
          send(test, {:outcome, self(), call, outcome})
        end

        # Linked processes end when this one is killed; a normal exit would not end them.
        Process.sleep(:infinity)
      end)

    failures = wait(pid, monitor, {module, name}, length(calls), [])
    Process.exit(pid, :kill)
    failures
  end

  defp wait(_pid, monitor, _function, 0, failures) do
    Process.demonitor(monitor, [:flush])
    failures
  end

  defp wait(pid, monitor, function, left, failures) do
    receive do
      {:outcome, ^pid, _call, :ok} ->
        wait(pid, monitor, function, left - 1, failures)

      {:outcome, ^pid, call, outcome} ->
        failure = {function, inspect(call, limit: 8, printable_limit: 60), outcome}
        wait(pid, monitor, function, left - 1, failures ++ [failure])

      {:DOWN, ^monitor, :process, ^pid, reason} ->
        failures ++ [{function, :ended, reason}]
    after
      @patience_ms -> failures ++ [{function, :hangs, left}]
    end
  end

  defp own({:with, arg, field, odd}, context), do: arg |> own(context) |> Map.put(field, odd)

  defp own(:session, %{policy: policy}) do
    once(:session, fn ->
      {:ok, session} = Session.open(policy, rollback: 1)
      session
    end)
  end

  defp own(:serving, %{policy: policy}) do
    once(:serving, fn ->
      {:ok, serving} = Serving.start_link(policy: policy)
      {:ok, info} = Serving.info(serving)
      info
    end)
  end

  defp own(arg, _context), do: arg

  defp once(name, make) do
    with nil <- Process.get(name), do: tap(make.(), &Process.put(name, &1))
  end

  defp outcome(module, name, args, right) do
    module |> apply(name, args) |> settle() |> valued()
  rescue
    error in ArgumentError -> named(error)
    error in FunctionClauseError -> at_the_door(error, module, name, right)
    _error in Error -> :ok
    error -> {:raised, error.__struct__, trace(__STACKTRACE__)}
  catch
    kind, reason -> {kind, inspect(reason, limit: 10)}
  end

  # A stream must run to have an outcome.
  defp settle(stream) when is_function(stream, 2), do: Enum.take(stream, 1)
  defp settle({:ok, %{pid: _} = value}), do: value
  defp settle(value), do: value

  defp valued({:error, %Error{} = error}),
    do: if(String.valid?(Exception.message(error)), do: :ok, else: :message)

  # The agent for apps of ExPhil has the errors that they match on.
  defp valued({:error, {:policy_load_failed, reason}}), do: valued({:error, reason})
  defp valued({:error, {:invalid_snapshot, %Error{} = error}}), do: valued({:error, error})
  defp valued({:error, {:invalid_policy, _given}}), do: :ok
  # Two rows start a process under the same odd name.
  defp valued({:error, {:already_started, pid}}) when is_pid(pid), do: :ok
  defp valued({:error, other}), do: {:error, inspect(other, limit: 10)}
  defp valued(value), do: if(is_binary(inspect(value, limit: 5)), do: :ok)

  # Erlang's own messages name no argument.
  defp named(%{message: "argument error" <> _}), do: :bare_argument_error
  defp named(%{message: "errors were found" <> _}), do: :bare_argument_error
  defp named(%{message: message}), do: if(String.valid?(message), do: :ok, else: :message)

  defp at_the_door(%{module: module, function: name}, module, name, right) do
    if Enum.any?(right, &(&1 in [:session, :serving] or is_map(&1))), do: :ok, else: :no_clause
  end

  defp at_the_door(error, _module, _name, _right),
    do: {:no_clause, error.module, error.function, error.arity}

  defp trace(stack),
    do: for({module, name, _, _} <- Enum.take(stack, 4), do: {module, name})
end
