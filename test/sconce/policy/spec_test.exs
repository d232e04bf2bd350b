defmodule Sconce.Policy.SpecTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.Native
  alias Sconce.Policy.Spec

  doctest Spec

  @action [action: {:categorical, 2}]

  test "defaults are a GRU over Melee frames with the six heads of a controller" do
    spec = Spec.new()

    assert {:melee, _options} = spec.embedding

    assert {:gru,
            hidden_size: 256,
            num_layers: 2,
            layer_norm: true,
            norm_eps: 1.0e-5,
            initial_state: false,
            input_norm: true,
            dropout: 0.1,
            input_dropout: +0.0} = spec.backbone

    assert Enum.map(spec.heads, &{&1.name, &1.kind, &1.hidden_size}) == [
             {:buttons, {:bernoulli, 8}, 64},
             {:main_x, {:categorical, 17}, 64},
             {:main_y, {:categorical, 17}, 64},
             {:c_x, {:categorical, 17}, 64},
             {:c_y, {:categorical, 17}, 64},
             {:shoulder, {:categorical, 5}, 32}
           ]

    assert {spec.heads_kind, spec.stream_size, spec.prior} == {:independent, 128, false}
    assert spec.value_head == false
    assert Spec.new(value_head: nil) == spec
  end

  test "a Spec returns unchanged from the native side" do
    for opts <- [
          [],
          [backbone: :lstm, dropout: 0.3, input_dropout: 0.123456789, input_norm: false],
          [embedding: {:melee, layout: :packed}, backbone: :mlp, residual: true],
          [heads: :autoregressive, stream_size: 64, axis_buckets: 20, prior: true],
          [embedding: {:vector, 4}, heads: [fire: {:bernoulli, 3}, move: {:categorical, 9}]],
          [backbone: :mlp, activation: :tanh, hidden_sizes: [8]],
          [hidden_size: 8, value_head: true],
          [hidden_size: 8, value_head: true, critic: :separate],
          [
            backbone: :mlp,
            activation: :gelu,
            hidden_sizes: [8],
            value_head: true,
            critic: :separate
          ]
        ] do
      spec = Spec.new(opts)
      {:ok, native} = spec |> Spec.to_native() |> Native.probe_echo()
      assert Spec.from_native(native) == spec

      {:ok, policy} = Sconce.Policy.init(spec)
      assert policy.spec == spec
    end
  end

  test "a file saved with a :decision_transformer opens as a :causal_transformer, and continues" do
    before = Path.expand("../../golden/before/decision_transformer", __DIR__)
    {:ok, policy} = Sconce.Policy.load(before <> ".safetensors")
    assert {:causal_transformer, [{:hidden_size, 4} | _options]} = policy.spec.backbone
    {:ok, session} = Sconce.Session.open(policy, snapshot: File.read!(before <> ".snapshot"))

    # The decisions of the session that wrote the snapshot.
    logits = [
      [0.5498687624931335, -0.14736084640026093],
      [0.49162620306015015, -0.25458836555480957],
      [0.4271235466003418, -0.3595779538154602],
      [0.3586796820163727, -0.4578678011894226]
    ]

    for {wanted, n} <- Enum.with_index(logits, 6) do
      {:ok, action} = Sconce.Session.act(session, [n / 5, -n / 7], logits: true)
      assert {action.frame, length(action.logits.action)} == {n, 2}

      for {logit, wanted} <- Enum.zip(action.logits.action, wanted),
          do: assert_in_delta(logit, wanted, 1.0e-5)
    end

    path = Path.join(tmp_dir!("spec"), "policy.safetensors")
    :ok = Sconce.Policy.save(policy, path)
    refute File.read!(path) =~ "decision_transformer"
    assert {:ok, %{spec: spec}} = Sconce.Policy.load(path)
    assert spec == policy.spec
  end

  test "a decision transformer is refused with the name of its replacement" do
    said =
      "unknown backbone :decision_transformer, did you mean :causal_transformer? It reads frames, " <>
        "without tokens for returns and actions"

    for refused <- [
          fn -> Spec.new(backbone: :decision_transformer) end,
          fn -> Spec.new(backbone: {:decision_transformer, num_layers: 2}) end,
          fn -> Spec.new(preset: :production, backbone: :decision_transformer) end,
          fn -> Sconce.Policy.init(backbone: :decision_transformer) end
        ] do
      assert_raise ArgumentError, said, refused
    end
  end

  test "equal options make equal Specs, other options do not" do
    assert Spec.new(hidden_size: 64) == Spec.new(backbone: {:gru, hidden_size: 64})
    assert Spec.new(hidden_size: 64) != Spec.new(hidden_size: 65)
    assert Spec.new(Spec.new()) == Spec.new()
  end

  test "a Melee frame is normalised unless the option says otherwise" do
    norm = fn opts -> elem(Spec.new(opts).backbone, 1)[:input_norm] end

    assert norm.([])
    refute norm.(embedding: {:vector, 2}, heads: @action)
    assert norm.(embedding: {:vector, 2}, heads: @action, input_norm: true)
  end

  test "heads without a hidden layer have one layer of weights" do
    spec = Spec.new(backbone: :mlp, hidden_sizes: [8], head_hidden_size: 0)
    assert Enum.all?(spec.heads, &(&1.hidden_size == 0))
    {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
    {:ok, weights} = Sconce.Policy.weights(policy)
    assert {"heads.logits.weight", {81, 8}} in weights
  end

  test "an activation is an option of an MLP, and relu is that of a Spec stored without one" do
    spec = Spec.new(backbone: :mlp, hidden_sizes: [8])
    assert {:mlp, options} = spec.backbone
    assert options[:activation] == :relu
    {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
    path = Path.join(tmp_dir!("spec"), "policy.safetensors")
    :ok = Sconce.Policy.save(policy, path)
    refute File.read!(path) =~ "activation"
    assert {:ok, %{spec: ^spec}} = Sconce.Policy.load(path)

    assert inspect(Spec.new(backbone: :mlp, activation: :tanh, hidden_sizes: [8])) =~
             "mlp tanh 8 ->"

    assert_raise ArgumentError, ~r/:gru.*:activation/, fn -> Spec.new(activation: :tanh) end

    assert_raise ArgumentError, ~r/:activation/, fn ->
      Spec.new(backbone: :mlp, activation: :swish)
    end
  end

  test "a separate critic has a backbone of its own and prints" do
    opts = [embedding: {:vector, 2}, heads: @action, hidden_size: 8, value_head: true]
    shared = Spec.new(opts)
    separate = Spec.new([critic: :separate] ++ opts)
    assert shared.critic == :shared
    assert Spec.new(Spec.to_options(separate)) == separate
    assert inspect(shared) =~ "action(2) value>"
    assert inspect(separate) =~ "action(2) value of its own trunk>"

    {:ok, policy} = Sconce.Policy.init(separate, seed: 1)
    {:ok, weights} = Sconce.Policy.weights(policy)
    assert {"critic.value.weight", {1, 8}} in weights
    assert {"critic.backbone.weight_hh_l0", {24, 8}} in weights
    refute Enum.any?(weights, fn {name, _shape} -> name =~ "heads.value" end)

    other = Spec.new([critic: {:mlp, hidden_sizes: [4]}] ++ opts)
    assert inspect(other) =~ "value of its own mlp 4>"
    assert Spec.new(Spec.to_options(other)) == other
    {:ok, policy} = Sconce.Policy.init(other, seed: 1)
    assert policy.spec == other
    assert Spec.new([critic: {:gru, hidden_size: 8}] ++ opts) == separate

    assert_raise ArgumentError, "option :critic needs value_head: true, got: :separate", fn ->
      Spec.new(critic: :separate)
    end

    assert_raise ArgumentError, ~r/option :critic: expected :shared/, fn ->
      Spec.new(value_head: true, critic: :own)
    end
  end

  test "a Spec prints in one line" do
    assert inspect(Spec.new(backbone: :mlp, hidden_sizes: [64, 32])) ==
             "#Sconce.Policy.Spec<melee -> mlp 64-32 -> controller(81)>"

    assert inspect(Spec.new(embedding: {:melee, layout: :packed})) =~ "<melee packed 288 -> "

    deep = Spec.new(embedding: {:melee, layout: :packed, queue_depth: 4, num_delays: 9})
    assert inspect(deep) =~ "<melee packed -> "
    {:ok, policy} = Sconce.Policy.init(deep)
    assert inspect(policy) =~ "<melee packed 336 -> "
  end

  test "a wrong option is refused by name" do
    for {opts, sentence} <- [
          {[backbne: :gru], "unknown option :backbne, did you mean :backbone?"},
          {[backbone: :gro], "unknown backbone :gro, did you mean :gru?"},
          {[backbone: 3], ~r/:backbone/},
          {[backbone: :mlp, hidden_size: 8],
           ~r/:mlp.*:hidden_size, did you mean :hidden_sizes\?/},
          {[backbone: :mlp, hidden_sizes: []], ~r/:hidden_sizes.*at least one/},
          {[hidden_size: 0], ~r/:hidden_size/},
          {[dropout: 1.0], ~r/:dropout.*from 0.0 to 0.99/},
          {[embedding: :mele], ~r/:mele/},
          {[heads: :autoregresive], ~r/did you mean :autoregressive\?/},
          {[heads: []], ~r/:heads/},
          {[heads: [{:move, {:categorcal, 2}}]], ~r/did you mean :categorical\?/},
          {[heads: [move: {:categorical, 1}]], ~r/:move.*2..65536 classes/},
          {[heads: [move: 3]], ~r/:move/},
          {[heads: [Move: {:categorical, 2}]], ~r/a head's name/},
          {[heads: [a: {:bernoulli, 1}, a: {:bernoulli, 1}]], ~r/two heads have the same name/},
          {[heads: @action, axis_buckets: 8], ~r/:axis_buckets does not apply/},
          {[heads_kind: :independent], ~r/:heads_kind does not apply/},
          {[stream_size: 8], ~r/:stream_size does not apply to independent/},
          {[heads: :autoregressive, head_hidden_size: 8], ~r/:head_hidden_size does not apply/},
          {[embedding: {:vector, 2}, prior: true],
           ~r/:prior needs a game whose inputs are declared/},
          {[prior: true, heads: bernoulli_shoulder()],
           ~r/:prior needs the heads of the controller/},
          {[embedding: {:melee, queue_depth: 2}, heads: @action],
           ~r/:queue_depth of the embedding: 2 needs the heads of the controller/},
          {[value_head: 1], ~r/:value_head/},
          {[heads: [a: {:gaussian, 2, 1, 1}]], ~r/head :a: expected .*gaussian/},
          {[heads: [a: {:gausian, 2}]], ~r/did you mean :gaussian/}
        ] do
      assert_raise ArgumentError, sentence, fn -> Spec.new(opts) end
    end
  end

  # Heads with the names of a controller's but another kind.
  defp bernoulli_shoulder do
    sticks = for name <- [:main_x, :main_y, :c_x, :c_y], do: {name, {:categorical, 17}}
    [buttons: {:bernoulli, 8}] ++ sticks ++ [shoulder: {:bernoulli, 4}]
  end
end
