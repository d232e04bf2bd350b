defmodule Sconce.TemporalTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Sconce.{Error, Policy, Session, Temporal, Trainer}
  alias Sconce.Env.CartPole
  alias Sconce.Policy.Spec

  doctest Temporal

  # Two layers contain each kind of layer of a backbone.
  @sizes [
    hidden_size: 8,
    hidden_sizes: [8, 6],
    num_layers: 2,
    num_heads: 2,
    head_dim: 6,
    window_size: 5,
    state_size: 3,
    expand_factor: 3,
    conv_size: 3,
    chunk_size: 4,
    attention_every: 2
  ]
  @window 6

  # A Spec with vectors of two numbers and one choice out of two, as in CartPole.
  defp small(name) do
    options = Keyword.take(@sizes, Keyword.keys(Temporal.options(name)))
    heads = [action: {:categorical, 2}]
    Spec.new([embedding: {:vector, 2}, backbone: name, heads: heads] ++ options)
  end

  defp policy!(name) do
    {:ok, policy} = Policy.init(small(name), seed: 3)
    policy
  end

  defp frame(t), do: [:math.sin(t * 0.7), :math.cos(t * 0.3)]

  defp floats(binary), do: for(<<v::float-32-little <- binary>>, do: v)

  defp assert_close(a, b, name) do
    assert length(a) == length(b)

    for {x, y} <- Enum.zip(a, b),
        do: assert_in_delta(x, y, 1.0e-5 * max(1.0, abs(y)), "#{inspect(name)}: #{inspect(a)}")
  end

  defp last_logits(policy, frames) do
    {:ok, out} = Policy.forward(policy, [frames], return_sequences: false)
    floats(out.logits)
  end

  test "each backbone is in the table, with its formula, its needs and its options" do
    table = capture_io(fn -> :ok = Temporal.print() end)

    for name <- Temporal.backbones() do
      assert table =~ ~r/^#{name} \(/m
      for {option, _spec} <- Temporal.options(name), do: assert(table =~ "#{option} ")
    end

    assert table =~ "h = (1 - z) * n + z * h"
    assert table =~ "needs    hidden_size to be a multiple of 2 x num_heads"
  end

  test "options of one name have one default, unless the family has another" do
    usual = [
      num_heads: 4,
      head_dim: 64,
      window_size: 60,
      qk_layernorm: true,
      state_size: 16,
      expand_factor: 2,
      conv_size: 4,
      attention_every: 3,
      chunk_size: 32,
      hidden_size: 256,
      dropout: 0.1
    ]

    others = [
      griffin: [expand_factor: 3, window_size: 32],
      hawk: [expand_factor: 3],
      rwkv: [expand_factor: 4],
      s4d: [state_size: 64],
      s5: [state_size: 64],
      causal_transformer: [num_heads: 8, head_dim: 32, window_size: 20],
      res_lstm: [hidden_size: 512],
      tx_like: [hidden_size: 512]
    ]

    for name <- Temporal.backbones(), {option, spec} <- Temporal.options(name), usual[option] do
      want = get_in(others, [name, option]) || usual[option]
      assert {name, option, spec[:default]} == {name, option, want}
    end
  end

  test "options that contradict each other are refused, and all that the table accepts can be built" do
    for {opts, sentence} <- [
          {[backbone: :sliding_window, head_dim: 7],
           "the :sliding_window backbone needs head_dim (7) to be a multiple of 2"},
          {[backbone: :griffin, hidden_size: 12, num_heads: 4],
           "the :griffin backbone needs hidden_size (12) to be a multiple of 2 x num_heads (8)"},
          {[backbone: :retnet, hidden_size: 12],
           "the :retnet backbone needs hidden_size (12) to be a multiple of 2 x num_heads (8)"},
          {[backbone: :mamba_2, hidden_size: 16],
           "the :mamba_2 backbone needs expand_factor x hidden_size (32) to be a multiple of " <>
             "head_dim (64)"},
          {[backbone: :gla, hidden_size: 3], ~r/^the :gla backbone needs expand_factor x hidden/},
          {[backbone: :xlstm, hidden_size: 6], ~r/^the :xlstm backbone needs hidden_size \(6\)/},
          {[backbone: :mamba, num_layers: 257], ~r/:num_layers: .*at most 256/},
          {[backbone: :mlp, hidden_sizes: List.duplicate(4, 257)], ~r/at most 256 layers/}
        ] do
      assert_raise ArgumentError, sentence, fn -> Spec.new(opts) end
    end

    for name <- Temporal.backbones(), hidden <- 1..9, heads <- [1, 3, 4], head_dim <- [1, 4] do
      sizes = [hidden_size: hidden, num_heads: heads, head_dim: head_dim]
      own = Keyword.take(sizes, Keyword.keys(Temporal.options(name)))
      {^name, options} = small(name).backbone

      backbone = {name, Keyword.merge(options, own)}
      opts = [embedding: {:vector, 1}, backbone: backbone, heads: [go: {:bernoulli, 1}]]
      assert fitting(opts) == :refused or match?({:ok, %Policy{}}, Policy.init(opts))
    end
  end

  defp fitting(opts) do
    Spec.new(opts)
    :fits
  rescue
    error in ArgumentError ->
      assert Exception.message(error) =~ "backbone needs"
      :refused
  end

  test "an impossible size is refused before memory is allocated" do
    attention = [backbone: :sliding_window, hidden_size: 2, window_size: 65_536]

    for options <- [
          attention ++ [num_heads: 1024],
          attention ++ [num_heads: 1, head_dim: 65_536],
          [backbone: :mamba, hidden_size: 4, expand_factor: 65_536, state_size: 65_536]
        ] do
      assert {:error, %Error{kind: :out_of_memory}} = Policy.init(options)
    end
  end

  describe "every backbone" do
    test "has a state of the size in the table" do
      for name <- Temporal.backbones() do
        %{spec: %{backbone: {^name, options}}} = policy = policy!(name)
        assert {name, policy.state_size} == {name, state_size(name, Map.new(options))}
      end
    end

    test "has the width of its options" do
      for name <- Temporal.backbones() do
        assert policy!(name).trunk_width == if(name == :mlp, do: 6, else: 8)
      end
    end

    test "computes the same for a whole sequence and frame by frame, also with taps" do
      games = for b <- 1..3, do: for(t <- 1..9, do: frame(10 * b + t))

      for name <- Temporal.backbones() do
        policy = policy!(name)
        {:ok, whole} = Policy.forward(policy, games, taps: true)
        assert whole.taps["trunk"].shape == {3, 9, policy.trunk_width}
        assert {name, layer_taps(whole.taps)} == {name, Enum.sort(Temporal.taps(name))}
        {:ok, plain} = Policy.forward(policy, games)
        assert_close(floats(whole.logits), floats(plain.logits), name)

        {steps, state} =
          Enum.map_reduce(0..8, nil, fn t, state ->
            {:ok, out} = Policy.step(policy, Enum.map(games, &Enum.at(&1, t)), state: state)
            {out.logits, out.state}
          end)

        by_game = for b <- 0..2, step <- steps, into: <<>>, do: binary_part(step, b * 8, 8)
        assert_close(floats(by_game), floats(whole.logits), name)
        assert_close(floats(state), floats(whole.state), name)
      end
    end

    test "returns unchanged from its checkpoint" do
      dir = tmp_dir!("backbones")

      for name <- Temporal.backbones() do
        policy = policy!(name)
        path = Path.join(dir, "#{name}.safetensors")
        :ok = Policy.save(policy, path)
        assert {:ok, loaded} = Policy.load(path)
        assert loaded.spec == policy.spec

        assert inspect(loaded) =~
                 ~r/^#Sconce.Policy<vector 2 -> #{name} 8[x-]\d -> action\(2\) · /

        games = [Enum.map(1..7, &frame/1)]
        assert Policy.forward(loaded, games) == Policy.forward(policy, games)
      end
    end
  end

  describe "a session over every backbone" do
    defp open!(policy, mode) do
      options = [mode: mode, window_size: @window, seed: 5, logits: true]
      {:ok, session} = Session.open(policy, options)
      session
    end

    defp play!(session, ts) do
      for t <- ts do
        {:ok, action} = Session.act(session, frame(t))
        action.logits.action
      end
    end

    # The last frames up to t, padded with copies of the first.
    defp window(t), do: for(k <- (t - @window + 1)..t, do: frame(max(k, 0)))

    # The frames that the model has seen when it decides on frame t.
    defp seen(:window, t), do: window(t)
    defp seen(:carry, t), do: window(0) ++ for(k <- 1..t//1, do: frame(k))

    defp seen({:resync, every}, t) do
      last = t - rem(t, every)
      window(last) ++ for(k <- (last + 1)..t//1, do: frame(k))
    end

    test "sees the frames of its mode, at each frame" do
      for name <- Temporal.backbones(), mode <- [:carry, :window, {:resync, 4}] do
        policy = policy!(name)
        logits = policy |> open!(mode) |> play!(0..10)

        for {logits, t} <- Enum.with_index(logits),
            do: assert_close(logits, last_logits(policy, seen(mode, t)), {name, mode, t})
      end
    end

    test "restarts after a reset and continues from a snapshot" do
      for name <- Temporal.backbones(), mode <- [:carry, :window, {:resync, 4}] do
        policy = policy!(name)
        [session, other] = for _ <- 1..2, do: open!(policy, mode)
        {:ok, empty} = Session.snapshot(session)
        first = play!(session, 0..6)
        {:ok, snapshot} = Session.snapshot(session)
        rest = play!(session, 7..13)

        assert Session.restore(other, snapshot) == :ok
        assert {name, mode, play!(other, 7..13)} == {name, mode, rest}
        assert Session.restore(other, empty) == :ok
        assert play!(other, 0..6) == first

        :ok = Session.reset(session)
        assert Session.snapshot(session) == {:ok, empty}
        assert play!(session, 0..13) == first ++ rest
      end
    end
  end

  describe "training" do
    setup do
      dir = tmp_dir!("temporal")
      {:ok, games} = CartPole.demonstrations(games: 6, steps: 60)
      {:ok, corpus} = CartPole.corpus(games, into: Path.join(dir, "corpus"))
      {:ok, dir: dir, corpus: corpus}
    end

    test "changes the weights of each backbone, on windows and whole games", %{
      dir: dir,
      corpus: corpus
    } do
      for name <- Temporal.backbones(), unroll <- [:window, :carry] do
        out = Path.join(dir, "#{name}-#{unroll}")
        spec = small(name)

        options = [
          corpus: corpus,
          out: out,
          spec: spec,
          unroll: unroll,
          truncate_bptt: 5,
          gradient_checkpoint: unroll == :carry,
          batch_size: 3,
          window_size: 12,
          steps: 3,
          validate_every: 3,
          val_split: 0.4,
          validation_mode: unroll,
          evaluate: false,
          loss: :plain
        ]

        {:ok, run} = Trainer.start_link(options)
        assert {:ok, report} = Trainer.await(run)
        assert {report.steps, report.spec} == {3, spec}
        assert %{loss: loss, nll: nll} = List.last(report.history)
        assert is_float(loss) and is_float(nll)

        {:ok, policy} = Policy.load(Path.join(out, "last.safetensors"))
        {:ok, start} = Policy.init(spec, seed: 0)
        games = [Enum.map(1..5, &frame/1)]
        assert Policy.forward(policy, games) != Policy.forward(start, games)
      end
    end
  end

  # The names of taps without the numbers of their layers.
  defp layer_taps(taps) do
    names = taps |> Map.drop(~w(embedding trunk)) |> Map.keys()

    names
    |> Enum.map(&(&1 |> String.split(".") |> List.last()))
    |> Enum.uniq()
    |> Enum.sort()
    |> Enum.map(&String.to_existing_atom/1)
  end

  # Count of numbers in the state of one game.
  defp state_size(:mlp, _options), do: 0

  defp state_size(name, %{num_layers: n, hidden_size: h} = o) do
    inner = Map.get(o, :expand_factor, 1) * h

    case name do
      name when name in [:lstm, :res_lstm, :tx_like] ->
        2 * n * h

      name when name in [:gru, :min_gru, :min_lstm] ->
        n * h

      name when name in [:sliding_window, :causal_transformer] ->
        n * ring(o)

      :lstm_hybrid ->
        2 * n * h + ring(o)

      :mamba ->
        n * mamba(o)

      :mamba_2 ->
        n * (inner * o.state_size + (o.conv_size - 1) * (inner + 2 * o.state_size))

      :jamba ->
        (n - attending(o)) * mamba(o) + attending(o) * ring(o)

      :zamba ->
        n * mamba(o) + attending(o) * ring(o)

      :griffin ->
        (n - attending(o)) * o.conv_size * h + attending(o) * (2 * o.window_size * h + 1)

      :hawk ->
        n * o.conv_size * h

      :gated_ssm ->
        n * o.conv_size * inner

      :hgrn ->
        n * inner

      :s4d ->
        n * h * o.state_size

      :s5 ->
        n * o.state_size

      :rwkv ->
        4 * n * h

      :retnet ->
        n * div(inner * h, o.num_heads)

      :gla ->
        n * inner * o.head_dim

      :xlstm ->
        ceil(n / 2) * mlstm(inner, o.num_heads) + div(n, 2) * 4 * h
    end
  end

  defp attending(o), do: div(o.num_layers, o.attention_every)
  defp ring(o), do: 2 * o.window_size * o.num_heads * o.head_dim + 1
  defp mamba(o), do: o.expand_factor * o.hidden_size * (o.conv_size - 1 + o.state_size)
  defp mlstm(inner, heads), do: (div(inner, heads) + 4) * inner + heads
end
