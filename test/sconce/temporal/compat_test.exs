defmodule Sconce.Temporal.CompatTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Embedding, Error, Policy, Session, Temporal, Trainer}
  alias Sconce.Env.CartPole
  alias Sconce.Policy.Spec
  alias Sconce.Temporal.Catalogue

  @forms Catalogue.forms()
  @window 6
  @sizes [
    hidden_size: 12,
    num_layers: 2,
    num_heads: 2,
    head_dim: 6,
    window_size: @window,
    inner_size: 10,
    initial_state: true,
    state_size: 3,
    expand_factor: 2
  ]

  # A Spec with vectors of two numbers and one choice out of two, as in CartPole.
  defp small({name, program}) do
    own = Keyword.take(@sizes, Keyword.keys(Temporal.options(name, program)))
    own = [embedding: {:vector, 2}, heads: [action: {:categorical, 2}], compat: program] ++ own
    Spec.new([backbone: name] ++ own)
  end

  defp policy!(form) do
    {:ok, policy} = Policy.init(small(form), seed: 3)
    policy
  end

  defp carries?(policy), do: match?({:ok, _}, open(policy, :carry))

  defp open(policy, mode),
    do: Session.open(policy, mode: mode, window_size: @window, seed: 5, logits: true)

  defp frame(t), do: [:math.sin(t * 0.7), :math.cos(t * 0.3)]
  defp floats(binary), do: for(<<v::float-32-little <- binary>>, do: v)

  defp last_logits(policy, frames) do
    {:ok, out} = Policy.forward(policy, [frames], return_sequences: false)
    floats(out.logits)
  end

  defp assert_close(a, b, about) do
    assert length(a) == length(b)
    for {x, y} <- Enum.zip(a, b), do: assert_in_delta(x, y, 1.0e-5, "#{inspect(about)}")
  end

  test "a form is a Spec that shows its program and comes back from a file" do
    dir = tmp_dir!("compat")
    assert length(@forms) >= 3

    for {{name, program} = form, _row} <- @forms do
      policy = policy!(form)
      assert {^name, [{:compat, ^program} | _]} = policy.spec.backbone
      assert inspect(policy.spec) =~ "-> #{name} #{program} 12x"
      assert Spec.new(Spec.to_options(policy.spec)) == policy.spec

      path = Path.join(dir, "#{name}.safetensors")
      :ok = Policy.save(policy, path)
      assert {:ok, loaded} = Policy.load(path)
      assert loaded.spec == policy.spec
      frames = [Enum.map(1..@window, &frame/1)]
      assert Policy.forward(loaded, frames) == Policy.forward(policy, frames)
    end
  end

  test "a form that does not exist, and options that it has not, are refused by name" do
    for {opts, sentence} <- [
          {[backbone: :gru, compat: :exphil], "the :gru backbone has no form compat: :exphil"},
          {[backbone: {:sliding_window, compat: :other}],
           "the :sliding_window backbone has no form compat: :other"},
          {[backbone: :sliding_window, compat: :exphil, qk_layernorm: true],
           "the :sliding_window backbone has no option :qk_layernorm"},
          {[backbone: :sliding_window, compat: :exphil, hidden_size: 64, head_dim: 8],
           "needs num_heads x head_dim (32) to be a multiple of hidden_size (64)"},
          {[backbone: :sliding_window, compat: :exphil, hidden_size: 64, head_dim: 32],
           "needs hidden_size (64) to be a multiple of num_heads x head_dim (128)"},
          {[backbone: :sliding_window, inner_size: 4],
           "the :sliding_window backbone has no option :inner_size"}
        ] do
      error = assert_raise ArgumentError, fn -> Spec.new(opts) end
      assert Exception.message(error) =~ sentence
    end
  end

  test "a window equals the sequence, and frames that are carried equal it too" do
    for {form, _row} <- @forms do
      policy = policy!(form)
      {:ok, session} = open(policy, :window)

      for t <- 0..9 do
        {:ok, action} = Session.act(session, frame(t))
        seen = for k <- (t - @window + 1)..t, do: frame(max(k, 0))
        assert_close(action.logits.action, last_logits(policy, seen), {form, t})
      end

      if carries?(policy) do
        games = for b <- 1..3, do: for(t <- 1..@window, do: frame(10 * b + t))
        {:ok, whole} = Policy.forward(policy, games)

        {steps, _state} =
          Enum.map_reduce(0..(@window - 1), nil, fn t, state ->
            {:ok, out} = Policy.step(policy, Enum.map(games, &Enum.at(&1, t)), state: state)
            {out.logits, out.state}
          end)

        by_game = for b <- 0..2, step <- steps, into: <<>>, do: binary_part(step, b * 8, 8)
        assert_close(floats(by_game), floats(whole.logits), form)
      end
    end

    # Its formula depends on the place in the window.
    assert {:error, %Error{kind: :mismatch}} = open(policy!({:sliding_window, :exphil}), :carry)
  end

  test "every form learns" do
    dir = tmp_dir!("compat_training")
    {:ok, games} = CartPole.demonstrations(games: 6, steps: 60)
    {:ok, corpus} = CartPole.corpus(games, into: Path.join(dir, "corpus"))

    for {{name, _program} = form, _row} <- @forms do
      spec = small(form)
      out = Path.join(dir, "#{name}")
      options = [batch_size: 3, window_size: @window, steps: 3, evaluate: false, loss: :plain]
      options = [corpus: corpus, out: out, spec: spec, validation_mode: :window] ++ options
      {:ok, run} = Trainer.start_link(options)
      assert {:ok, %{steps: 3, spec: ^spec}} = Trainer.await(run)
      {:ok, policy} = Policy.load(Path.join(out, "last.safetensors"))
      {:ok, start} = Policy.init(spec, seed: 0)
      games = [Enum.map(1..5, &frame/1)]
      assert Policy.forward(policy, games) != Policy.forward(start, games)
    end
  end

  test "the constant of norms and the initial state are parts of a Spec" do
    for backbone <- [:lstm, :gru] do
      own = [norm_eps: 1.0e-6, initial_state: true, hidden_size: 8]
      options = [embedding: {:vector, 2}, backbone: backbone, heads: [go: {:bernoulli, 1}]] ++ own
      {:ok, policy} = Policy.init(options)
      {^backbone, stored} = policy.spec.backbone
      assert Keyword.take(stored, [:norm_eps, :initial_state]) == Enum.take(own, 2)
      assert {:ok, plain} = Policy.init(options |> Keyword.drop([:norm_eps, :initial_state]))
      parts = if backbone == :lstm, do: 2, else: 1
      # h, and c of an LSTM, for two layers.
      assert policy.num_weights == plain.num_weights + parts * 2 * 8
    end

    assert_raise ArgumentError, ~r/option :norm_eps: .*from 1.0e-12 to 1.0/, fn ->
      Spec.new(backbone: :gru, norm_eps: 0)
    end
  end

  test "a policy without the previous action decides alike whatever a frame gives" do
    own = %{percent: 50, facing: true, x: -40.0, y: 10.0, action: 14, character: 1}
    player = Map.merge(own, %{on_ground: true, stock: 2})
    frame = %Sconce.Frame{own: player, opponent: player, stage: 31, frame: 10}
    pressed = %{buttons: %{b: true}, main_stick: %{x: 1.0, y: 0.5}}
    pressed = Map.merge(pressed, %{c_stick: %{x: 0.5, y: 0.25}, shoulder: 0.5})

    for {layout, shown} <- [packed: "melee packed", learned: "melee"] do
      embedding = {:melee, layout: layout, previous_action: false}
      {:ok, policy} = Policy.init([embedding: embedding, backbone: :gru, hidden_size: 8], seed: 1)
      assert inspect(policy) =~ ~r/<#{shown}( \d+)? without previous action -> gru/
      [one, other] = for _ <- 1..2, do: elem(open(policy, :carry), 1)

      for t <- 1..5 do
        frame = %{frame | frame: t}
        {:ok, plain} = Session.act(one, frame)
        {:ok, given} = Session.act(other, %{frame | previous_action: pressed})
        assert plain.logits == given.logits
      end

      {:ok, {with_it, _ids}} = Embedding.embed({:melee, layout: layout}, frame)
      {:ok, {without, _ids}} = Embedding.embed(embedding, %{frame | previous_action: pressed})
      # A frame without a previous action has zeros there too.
      assert with_it == without
    end

    assert_raise ArgumentError, "option :queue_depth: 2 needs previous_action: true", fn ->
      Embedding.new!({:melee, queue_depth: 2, previous_action: false})
    end
  end
end
