defmodule Sconce.Native do
  @moduledoc false
  # Stubs of the native library, grouped by noun. Keep logic out of this module: a VM that has loaded the library
  # cannot reload it.

  # Compilation must not load this module: the library may not be built yet.
  @compile {:autoload, false}
  @on_load :load
  @reason {__MODULE__, :load_error}

  # If the library is missing, the VM starts, and each call returns an error.
  def load do
    path = :filename.join([priv(), ~c"native", ~c"sconce_nif"])

    case :erlang.load_nif(path, 0) do
      :ok -> :persistent_term.erase(@reason)
      {:error, {:reload, _text}} -> :ok
      {:error, {_kind, text}} -> :persistent_term.put(@reason, to_string(text))
    end

    :ok
  end

  @doc "`:ok`, or the reason why the library could not be loaded."
  def status do
    case :persistent_term.get(@reason, nil) do
      nil -> :ok
      reason -> {:error, reason}
    end
  end

  # System
  def native_info, do: unavailable(:native_info)
  def memory_available, do: unavailable(:memory_available)
  def background_set(_priority), do: unavailable(:background)
  def background_given(_reference), do: unavailable(:background)
  def file_write(_path, _bytes), do: unavailable(:write)

  # Monitor
  def monitor_share(_path, _meta), do: unavailable(:monitor)
  def monitor_open(_path, _meta, _slots), do: unavailable(:monitor)
  def monitor_metric(_region, _kind, _name, _unit, _help), do: unavailable(:monitor)
  def monitor_add(_region, _metric, _n), do: unavailable(:monitor)
  def monitor_record(_region, _metric, _n), do: unavailable(:monitor)
  def monitor_update(_region, _changes), do: unavailable(:monitor)
  def monitor_beat(_region, _state), do: unavailable(:monitor)
  def monitor_read(_region), do: unavailable(:monitor)
  def monitor_alive, do: unavailable(:monitor)
  def monitor_sessions(_most), do: unavailable(:monitor)
  def monitor_trace, do: unavailable(:trace)
  def monitor_trace_end(_trace, _keep), do: unavailable(:trace)
  def monitor_trace_write(_trace, _path), do: unavailable(:trace)

  # Device
  def device_check(_ordinals), do: unavailable(:device)
  def device_allow(_budget), do: unavailable(:device)
  def device_memory(_reference, _ordinal), do: unavailable(:ledger)
  def device_release(_reference, _ordinal), do: unavailable(:release)

  # Net
  def net_outline(_spec), do: unavailable(:outline)
  def net_init(_spec, _seed, _storage), do: unavailable(:init)
  def net_load(_path, _storage), do: unavailable(:load)
  def net_from_weights(_spec, _weights, _storage), do: unavailable(:from_weights)
  def net_save(_net, _path), do: unavailable(:save)
  def net_weights(_net), do: unavailable(:weights)
  def net_run(_net, _inputs), do: unavailable(:run)
  def net_fit(_reference, _net, _examples, _options, _tells), do: unavailable(:fit)
  def net_evaluate(_reference, _net, _examples, _loss), do: unavailable(:evaluate)
  def net_run_dirty(_net, _inputs), do: unavailable(:run)

  # Corpus
  def corpus_import(_reference, _paths, _dir, _options), do: unavailable(:import)
  def corpus_import_tables(_reference, _game, _paths, _dir, _options), do: unavailable(:import)
  def builder_open(_schema, _dir, _append, _compress, _frame_delay), do: unavailable(:build)
  def builder_add(_builder, _rows), do: unavailable(:build)
  def builder_finish(_builder, _whole), do: unavailable(:build)
  def corpus_build(_reference, _schema, _games, _dir, _compress), do: unavailable(:build)
  def corpus_verify(_reference, _dir), do: unavailable(:verify)
  def corpus_open(_dir), do: unavailable(:open)
  def corpus_info(_corpus), do: unavailable(:info)
  def corpus_games(_corpus), do: unavailable(:games)
  def corpus_recording(_corpus, _game, _player), do: unavailable(:recording)
  def corpus_fields, do: unavailable(:fields)

  # Loader
  def loader_open(_corpus, _reference, _options), do: unavailable(:stream)
  def loader_info(_corpus, _reference, _options), do: unavailable(:stream)
  def loader_next(_loader, _reference), do: unavailable(:stream)
  def loader_prefetch(_loader, _depth), do: unavailable(:prefetch)
  def loader_close(_loader), do: unavailable(:stream)

  # Embedding
  def embedding_schema(_embedding), do: unavailable(:embedding_schema)
  def game_check(_declaration), do: unavailable(:game)
  def embed(_embedding, _raw), do: unavailable(:embed)
  def embed_many(_embedding, _rows), do: unavailable(:embed)

  # Policy
  def head_sizes(_kind), do: unavailable(:head)
  def policy_init(_spec, _seed), do: unavailable(:init)
  def policy_load(_path), do: unavailable(:load)
  def policy_import(_path, _asked), do: unavailable(:import)
  def policy_compare(_policy, _reference, _path), do: unavailable(:compare)
  def policy_export(_policy, _reference, _format, _path), do: unavailable(:export)
  def policy_on(_policy, _reference, _device), do: unavailable(:device)
  def policy_quantise(_policy, _reference, _coding, _calibration), do: unavailable(:quantise)
  def policy_low_rank(_policy, _reference, _factoring, _calibration), do: unavailable(:low_rank)
  def policy_prune(_policy, _reference, _pruning, _calibration), do: unavailable(:prune)
  def policy_mix(_policy, _reference, _others), do: unavailable(:mix)
  def policy_shrink(_policy, _reference, _sizes, _calibration), do: unavailable(:shrink)
  def policy_average(_reference, _policies, _shares), do: unavailable(:average)
  def policy_save(_policy, _path, _notes), do: unavailable(:save)
  def policy_save_packed(_policy, _path, _notes, _packed), do: unavailable(:save)
  def policy_formats_us(_policy, _reference, _formats, _rounds), do: unavailable(:measure)
  def policy_info(_policy), do: unavailable(:info)
  def policy_weights(_policy), do: unavailable(:weights)
  def policy_weight(_policy, _name), do: unavailable(:weight)
  def policy_put_weights(_policy, _reference, _weights), do: unavailable(:put_weights)

  def policy_forward(_policy, _reference, _rows, _shape, _given, _look),
    do: unavailable(:forward)

  def policy_forward_between(_policy, _reference, _memory, _shape, _given, _look),
    do: unavailable(:forward)

  # Session
  def session_open(_policy, _reference, _options, _project_out), do: unavailable(:open)

  def session_act(_session, _reference, _frame, _how, _overrides, _project_out),
    do: unavailable(:act)

  def session_act_many(_reference, _asked, _deadline_ms), do: unavailable(:act_many)
  def session_abandon(_session), do: unavailable(:act)
  def session_reset(_session, _seed), do: unavailable(:reset)
  def session_rollback(_session, _game_frame), do: unavailable(:rollback)
  def session_back_to(_session, _frames), do: unavailable(:act)
  def session_snapshot(_session, _ref), do: unavailable(:snapshot)
  def session_restore(_session, _ref, _snapshot), do: unavailable(:restore)
  def session_info(_session), do: unavailable(:info)
  def session_transfer(_session, _pid), do: unavailable(:transfer)
  def session_close(_session), do: unavailable(:close)

  # Serving
  def serving_start(_reference, _policy, _options, _sender), do: unavailable(:start)
  def serving_deliver(_serving), do: unavailable(:deliver)
  def serving_open(_serving, _reference, _options, _project_out), do: unavailable(:open)

  def serving_forward(_serving, _reference, _rows, _shape, _given, _how),
    do: unavailable(:forward)

  def serving_forward_many(_serving, _reference, _rows, _shape, _given, _how),
    do: unavailable(:forward)

  def serving_abandon(_ticket), do: unavailable(:forward)
  def serving_swap(_serving, _reference, _policy), do: unavailable(:swap)
  def serving_drain(_serving, _reference), do: unavailable(:drain)
  def serving_stop(_serving), do: unavailable(:stop)
  def serving_stats(_serving, _news), do: unavailable(:stats)
  def serving_load(_serving), do: unavailable(:load)
  def serving_limit(_serving, _max_batch), do: unavailable(:limit)
  def serving_batches(_serving), do: unavailable(:stats)
  def serving_info(_serving), do: unavailable(:info)

  # Trainer
  def train_start(_reference, _spec, _corpus, _out, _options, _asks), do: unavailable(:train)
  def train_answer(_task, _number, _verdict), do: unavailable(:train)
  def train_record(_out), do: unavailable(:train)
  def train_said(_path), do: unavailable(:options)
  def train_report(_out), do: unavailable(:report)
  def train_progress(_out), do: unavailable(:progress)
  def train_gradients(_out), do: unavailable(:gradients)
  def task_heard(_task), do: unavailable(:train)
  def train_stop(_task), do: unavailable(:train)

  def evaluate_start(_reference, _checkpoint, _corpus, _train, _options),
    do: unavailable(:evaluate)

  def plan_start(_reference, _spec, _corpus, _options), do: unavailable(:plan)
  def tune_start(_reference, _spec, _options, _tuning), do: unavailable(:tune)

  def range_test_start(_reference, _spec, _policy, _corpus, _options, _range),
    do: unavailable(:find_learning_rate)

  # GPU
  def gpu_versions(_reference, _library), do: unavailable(:versions)
  def gpu_count(_reference, _library), do: unavailable(:count)
  def gpu_card(_reference, _at), do: unavailable(:card)
  def gpu_memory(_reference, _at), do: unavailable(:memory)
  def gpu_utilization(_reference, _at), do: unavailable(:utilization)
  def gpu_temperature(_reference, _at), do: unavailable(:temperature)
  def gpu_power(_reference, _at), do: unavailable(:power)
  def gpu_clocks(_reference, _at), do: unavailable(:clocks)
  def gpu_throttle(_reference, _at), do: unavailable(:throttle)
  def gpu_processes(_reference, _at), do: unavailable(:processes)
  def gpu_abandon(_asked), do: unavailable(:abandon)

  # Env
  def env_names, do: unavailable(:env)
  def env_spec(_options, _host), do: unavailable(:env)
  def env_new(_reference, _options), do: unavailable(:env)
  def env_reset(_env, _reference, _seed, _mask), do: unavailable(:reset)
  def env_put(_env, _reference, _inputs), do: unavailable(:put)
  def env_step(_env, _reference, _inputs), do: unavailable(:step)
  def env_advance(_env, _reference), do: unavailable(:step)
  def env_read(_env, _column), do: unavailable(:read)
  def env_ended(_env, _reference), do: unavailable(:read)
  def env_episodes(_env, _reference), do: unavailable(:episodes)
  def env_state(_env, _at), do: unavailable(:state)
  def env_steps(_env), do: unavailable(:env)
  def env_shot(_reference, _shot), do: unavailable(:shot)
  def env_play(_reference, _policy, _options, _host, _play, _traced), do: unavailable(:play)
  def inbox_new(_spec, _terms, _capacity), do: unavailable(:rollout)
  def inbox_offer(_inbox, _segments), do: unavailable(:rollout)
  def inbox_take(_inbox, _most), do: unavailable(:rollout)
  def inbox_counts(_inbox), do: unavailable(:rollout)
  def inbox_newest(_inbox), do: unavailable(:rollout)
  def inbox_publish(_inbox, _policy), do: unavailable(:rollout)
  def policy_bytes(_policy, _reference), do: unavailable(:save)
  def policy_of_bytes(_reference, _bytes), do: unavailable(:load)
  def session_record(_session, _inbox, _options), do: unavailable(:record)
  def session_reward(_session, _number, _reward), do: unavailable(:reward)
  def session_done(_session, _over, _frame), do: unavailable(:done)
  def host_new(_pids, _spec, _count, _deadline_ms), do: unavailable(:env)
  def host_answer(_host, _number, _answer), do: unavailable(:env)
  def cartpole_demonstrations(_reference, _options), do: unavailable(:demonstrations)
  def cartpole_play(_reference, _policy, _velocities, _options), do: unavailable(:play)

  # PPO
  def ppo_start(_reference, _env, _spec, _out, _options, _resume), do: unavailable(:learn)
  def ppo_plan_start(_reference, _env, _spec, _options), do: unavailable(:plan)
  def ppo_tune_start(_reference, _env, _spec, _options, _tuning), do: unavailable(:tune)
  def ppo_record(_out), do: unavailable(:learn)
  def ppo_report(_out), do: unavailable(:report)

  # League
  def league_play(_reference, _players, _world, _tournament), do: unavailable(:league)
  def league_rate(_reference, _wins, _draws), do: unavailable(:rate)

  # Votes
  def votes_tally(_reference, _votes, _voters, _choices, _share), do: unavailable(:tally)

  # Store
  def store_open(_reference, _path, _options), do: unavailable(:open)
  def store_put(_store, _reference, _tensors, _lossy, _commit), do: unavailable(:put)
  def store_get(_store, _reference, _name, _rows, _stream), do: unavailable(:get)
  def store_delete(_store, _reference, _names, _commit), do: unavailable(:delete)
  def store_commit(_store, _reference), do: unavailable(:commit)
  def store_compact(_store, _reference, _share), do: unavailable(:compact)
  def store_verify(_store, _reference), do: unavailable(:verify)
  def store_refresh(_store, _reference), do: unavailable(:refresh)
  def store_names(_store), do: unavailable(:names)
  def store_tensor(_store, _name), do: unavailable(:info)
  def store_stats(_store), do: unavailable(:stats)
  def store_close(_store, _reference), do: unavailable(:close)

  # Archive
  def archive_new(_reference, _options), do: unavailable(:archive)
  def archive_load(_reference, _path), do: unavailable(:load)
  def archive_save(_archive, _reference, _path), do: unavailable(:save)
  def archive_add(_archive, _reference, _given), do: unavailable(:add)
  def archive_merge(_archive, _reference, _other), do: unavailable(:merge)
  def archive_stats(_archive), do: unavailable(:stats)
  def archive_elites(_archive, _reference), do: unavailable(:elites)
  def archive_sample(_archive, _reference, _count, _seed), do: unavailable(:sample)
  def archive_retrieve(_archive, _reference, _measures), do: unavailable(:retrieve)
  def archive_novelty(_archive, _reference, _measures, _nearest), do: unavailable(:novelty)
  def archive_vary(_archive, _reference, _variation, _count, _stream), do: unavailable(:vary)
  def archive_prune(_archive, _reference, _share), do: unavailable(:prune)
  def archive_best(_archive, _reference), do: unavailable(:best)
  def archive_raster(_archive, _reference), do: unavailable(:svg)

  # Neat
  def neat_new(_reference, _options), do: unavailable(:neat)
  def neat_load(_reference, _path), do: unavailable(:load)
  def neat_save(_neat, _reference, _path), do: unavailable(:save)
  def neat_forward(_neat, _reference, _inputs, _patterns), do: unavailable(:forward)
  def neat_tell(_neat, _reference, _fitness), do: unavailable(:tell)
  def neat_fit(_neat, _reference, _patterns, _generations, _stop_at), do: unavailable(:fit)
  def neat_genome(_neat, _reference, _at), do: unavailable(:genome)
  def neat_best(_neat, _reference), do: unavailable(:best)
  def neat_stats(_neat, _reference), do: unavailable(:stats)
  def neat_info(_neat), do: unavailable(:info)
  def neat_run(_reference, _genome, _inputs, _patterns), do: unavailable(:run)
  def neat_distance(_reference, _genomes, _options), do: unavailable(:distance)
  def neat_layers(_reference, _genome), do: unavailable(:svg)

  # Strategy
  def strategy_new(_reference, _mean, _options), do: unavailable(:strategy)
  def strategy_load(_reference, _path), do: unavailable(:load)
  def strategy_save(_strategy, _reference, _path), do: unavailable(:save)
  def strategy_ask(_strategy, _reference), do: unavailable(:ask)
  def strategy_tell(_strategy, _reference, _fitness), do: unavailable(:tell)
  def strategy_info(_strategy, _reference), do: unavailable(:info)
  def strategy_generation(_strategy), do: unavailable(:info)
  def strategy_solutions(_strategy, _reference), do: unavailable(:info)

  # Population
  def population_new(_reference, _spec, _options, _mean), do: unavailable(:population)
  def population_read(_population, _reference, _at), do: unavailable(:read)
  def population_solutions(_population, _reference), do: unavailable(:solutions)
  def population_write(_population, _reference, _first, _solutions), do: unavailable(:write)
  def population_forward(_population, _reference, _observations), do: unavailable(:forward)

  def population_vary(_population, _reference, _variation, _pairs, _stream),
    do: unavailable(:vary)

  def population_vary_from(_population, _reference, _archive, _variation, _stream),
    do: unavailable(:vary)

  def population_episodes(_population, _reference, _options), do: unavailable(:episodes)
  def population_policy(_reference, _spec, _solution), do: unavailable(:policy)
  def population_solution(_reference, _policy), do: unavailable(:solution)

  # Search
  def search_new(_reference, _spec, _options, _episodes, _archive), do: unavailable(:search)
  def search_run(_search, _reference, _generations), do: unavailable(:run)
  def search_start(_search, _reference, _folder, _options), do: unavailable(:evolve)
  def search_save(_search, _reference, _folder), do: unavailable(:save)
  def search_resume(_search, _reference, _folder), do: unavailable(:resume)
  def search_mean(_search, _reference), do: unavailable(:mean)

  # HRR
  def hrr_atoms(_reference, _sizes, _kind, _seed), do: unavailable(:atoms)
  def hrr_new(_reference, _numbers, _dimension), do: unavailable(:from_tensor)
  def hrr_numbers(_vectors, _reference), do: unavailable(:to_tensor)
  def hrr_within(_vectors, _reference, _spectrum), do: unavailable(:in_domain)
  def hrr_take(_vectors, _reference, _indices), do: unavailable(:take)
  def hrr_concat(_reference, _batches), do: unavailable(:concat)
  def hrr_bind(_one, _reference, _other), do: unavailable(:bind)
  def hrr_unbind(_one, _reference, _keys, _exact), do: unavailable(:unbind)
  def hrr_superpose(_reference, _batches, _several, _options), do: unavailable(:superpose)
  def hrr_normalise(_vectors, _reference), do: unavailable(:normalise)
  def hrr_unitary(_vectors, _reference), do: unavailable(:unitary)
  def hrr_permute(_vectors, _reference, _shift), do: unavailable(:permute)
  def hrr_power(_vectors, _reference, _exponents), do: unavailable(:power)
  def hrr_sequence(_vectors, _reference, _position, _length), do: unavailable(:sequence)
  def hrr_at(_vectors, _reference, _position, _places), do: unavailable(:at)

  def hrr_project(_reference, _numbers, _width, _target, _normalise),
    do: unavailable(:project)

  def hrr_quantise(_vectors, _reference), do: unavailable(:quantise)
  def hrr_similarity(_queries, _reference, _items), do: unavailable(:similarity)
  def hrr_cleanup(_queries, _reference, _items), do: unavailable(:cleanup)
  def hrr_card_new(_vectors, _reference, _device), do: unavailable(:on)
  def hrr_card_to_cpu(_vectors, _reference), do: unavailable(:on)
  def hrr_card_within(_vectors, _reference, _spectrum), do: unavailable(:in_domain)
  def hrr_card_bind(_one, _reference, _other, _keys), do: unavailable(:bind)
  def hrr_card_superpose(_vectors, _reference, _options), do: unavailable(:superpose)
  def hrr_card_quantise(_vectors, _reference), do: unavailable(:quantise)
  def hrr_card_similarity(_queries, _reference, _items), do: unavailable(:similarity)

  # Compress
  def compress_quantise(_reference, _given, _shape, _grid), do: unavailable(:quantise)

  def compress_dequantise(_reference, _given, _shape, _order, _grid),
    do: unavailable(:dequantise)

  def compress_fake_quantise(_reference, _given, _shape, _options),
    do: unavailable(:fake_quantise)

  def compress_gptq(_reference, _given, _shapes, _hessian, _options), do: unavailable(:gptq)
  def compress_smooth(_reference, _given, _shape, _alpha), do: unavailable(:smooth)
  def compress_prune(_reference, _given, _shape, _sparsity, _share), do: unavailable(:prune)
  def compress_two_four(_reference, _given, _shape), do: unavailable(:prune)
  def compress_structured(_reference, _given, _shape, _sparsity, _axis), do: unavailable(:prune)
  def compress_sparsity_at(_step, _steps, _ends), do: unavailable(:sparsity_at)
  def compress_low_rank(_reference, _given, _shape, _truncation), do: unavailable(:low_rank)

  def compress_distillation_loss(_reference, _given, _shape, _options),
    do: unavailable(:distillation_loss)

  # Onnx
  def onnx_export(_policy, _reference, _path, _how), do: unavailable(:export)

  # Measurements, in a library built with the feature `fixtures`
  def bench_noop, do: unavailable(:bench)
  def bench_dirty, do: unavailable(:bench)
  def bench_worker(_reference), do: unavailable(:bench)
  def bench_bandwidth(_reference, _bytes, _threads, _seconds), do: unavailable(:bench)
  def bench_flops(_reference, _threads, _seconds), do: unavailable(:bench)
  def bench_exponentials(_reference, _threads, _seconds), do: unavailable(:bench)
  def bench_forward(_reference, _spec, _steps), do: unavailable(:bench)
  def bench_train(_reference, _spec, _steps), do: unavailable(:bench)
  def bench_env(_reference, _options, _inputs, _seconds), do: unavailable(:bench)
  def bench_frames(_reference, _spec, _rows, _seconds), do: unavailable(:bench)

  # Contents of the library, with the feature `fixtures`
  def error_kinds, do: unavailable(:error_kinds)
  def frame_columns, do: unavailable(:frame_columns)
  def loader_count, do: unavailable(:stream)
  def session_count, do: unavailable(:count)

  # Generated replays and probes of the NIF border, with the feature `fixtures`
  def corpus_fixtures(_dir), do: unavailable(:fixtures)
  def probe_echo(_term), do: unavailable(:probe_echo)
  def probe_panic(_message), do: unavailable(:probe_panic)
  def probe_reply(_reference, _how), do: unavailable(:probe_reply)
  def probe_events(_reference, _progress, _events), do: unavailable(:probe_events)
  def probe_batch(_serving, _sleep_ms), do: unavailable(:probe_batch)
  def probe_hold(_serving), do: unavailable(:probe_hold)
  def probe_open(_gate), do: unavailable(:probe_open)
  def probe_stall, do: unavailable(:probe_stall)
  def probe_block(_device, _numbers), do: unavailable(:probe_block)
  def probe_block_place(_block), do: unavailable(:probe_block_place)
  def probe_block_read(_block), do: unavailable(:probe_block_read)
  def probe_block_count, do: unavailable(:probe_block_count)

  defp unavailable(op) do
    reason = :persistent_term.get(@reason, "without the feature fixtures")
    details = %{what: "native library", reason: reason, mend: "mix sconce.doctor"}

    # `identity/1` hides the type of the error. Otherwise a compiler that infers types concludes that a stub returns
    # only this error, and warns wherever a caller matches another answer.
    Function.identity({:error, %Sconce.Error{kind: :unavailable, op: op, details: details}})
  end

  defp priv do
    case :code.priv_dir(:sconce) do
      {:error, :bad_name} -> ~c"priv"
      dir -> dir
    end
  end
end
