defmodule Sconce.AtomsTest do
  # Not async: the test counts the atoms of this VM, and other tests make some.
  use ExUnit.Case, async: false

  # A loaded machine is slow.
  @moduletag timeout: 300_000

  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.{Corpus, Policy, Serving, Session, Trainer}
  alias Sconce.Policy.Spec

  # A name that is no atom yet. It is built at run time, so that no constant of the program contains it.
  defp name(n, part), do: Enum.join(["name", "of", "a", "file", to_string(n), part], "_")

  defp heads(n), do: [{name(n, "bits"), {:bernoulli, 2}}, {name(n, "class"), {:categorical, 3}}]

  defp small(n),
    do: [embedding: {:vector, 1}, backbone: :mlp, hidden_sizes: [8], heads: heads(n)]

  defp atoms, do: :erlang.system_info(:atom_count)

  test "neither checkpoints nor corpora make atoms, however they are used" do
    dir = tmp_dir!("atoms")
    # The first run loads code, and with it atoms.
    life(dir, 0)
    life(dir, 1)
    before = atoms()
    for n <- 2..4, do: life(dir, n)
    assert atoms() == before
  end

  test "300 checkpoints of 64 heads each make no atom" do
    dir = tmp_dir!("atoms")
    path = Path.join(dir, "many.safetensors")

    load = fn n ->
      heads = for i <- 1..64, do: {name(n, "x#{i}"), {:bernoulli, 1}}
      spec = [embedding: {:vector, 1}, backbone: :mlp, hidden_sizes: [8]]
      {:ok, policy} = Policy.init(spec ++ [heads: heads, head_hidden_size: 0])
      :ok = Policy.save(policy, path)
      {:ok, policy} = Policy.load(path)
      {:ok, _info} = Policy.info(policy)
      assert inspect(policy) =~ name(n, "x64")
    end

    load.(100)
    before = atoms()
    Enum.each(101..400, load)
    assert atoms() == before
  end

  # All uses of a name, from games to a policy that plays.
  defp life(dir, n) do
    dir = Path.join(dir, to_string(n))
    game = {for(t <- 1..40, do: t / 40), for(t <- 1..40, do: [rem(t, 2), 0, rem(t, 3)])}
    # Games with the same values would be on one side of the split.
    other = put_elem(game, 0, for(t <- 1..40, do: t / 80))

    {:ok, corpus} =
      Corpus.build({:vector, 1}, [game, other],
        into: Path.join(dir, "corpus"),
        heads: heads(n)
      )

    options = [
      corpus: corpus,
      out: Path.join(dir, "run"),
      steps: 2,
      batch_size: 2,
      window_size: 4
    ]

    options = options ++ [val_split: 0.5, lr_schedule: :constant, threads: 1]
    options = options ++ [backbone: :mlp, hidden_sizes: [8]]
    {:ok, run} = Trainer.start_link(options)
    {:ok, report} = Trainer.await(run)
    :ok = GenServer.stop(run)
    assert for(head <- report.policy.heads, do: head.name) == for({name, _} <- heads(n), do: name)
    assert Trainer.Report.format(report) =~ name(n, "bits")

    {:ok, run} = Trainer.start_link(resume: true, out: report.out, steps: 4)
    {:ok, %{steps: 4}} = Trainer.await(run)
    :ok = GenServer.stop(run)

    # A run may be resumed with the same heads.
    {:ok, run} = Trainer.start_link(resume: true, out: report.out, steps: 5, heads: heads(n))
    {:ok, %{steps: 5}} = Trainer.await(run)
    :ok = GenServer.stop(run)

    best = Path.join(report.out, "best.safetensors")
    {:ok, policy} = Policy.load(best)
    {:ok, %{policy: %{nll: _}}} = Trainer.evaluate(best, corpus)
    assert policy.spec == Spec.new(small(n))
    assert Spec.new(Spec.to_options(policy.spec)) == policy.spec
    plays(policy, n)
    {:ok, serving} = Serving.start_link(policy: policy)
    {:ok, session} = Serving.open(serving, seed: 1)
    assert {:ok, action} = Session.act(session, [0.5])
    assert Map.keys(action.choices) == Map.keys(choices(n))
    :ok = Serving.swap(serving, best)
    :ok = Serving.stop(serving)
  end

  defp choices(n), do: %{name(n, "bits") => [1, 0], name(n, "class") => 2}

  defp plays(policy, n) do
    {:ok, session} = Session.open(policy, seed: 1, logits: true)
    {:ok, action} = Session.act(session, [0.5], previous: choices(n))
    names = Enum.sort(Map.keys(choices(n)))

    for of <- [action.choices, action.logits, action.confidence],
        do: assert(Enum.sort(Map.keys(of)) == names)

    {:ok, scored} = Session.act(session, [0.5], choices: Map.to_list(choices(n)))
    assert scored.choices == choices(n)
    {:ok, again} = Session.act(session, [0.5], previous: scored)
    assert again.frame == 3
    assert inspect(session) =~ name(n, "bits")
    assert {:error, %{kind: :mismatch}} = Session.act(session, [0.5], choices: %{"another" => 1})
    {:ok, snapshot} = Session.snapshot(session)
    :ok = Session.restore(session, snapshot)
    :ok = Session.close(session)
  end

  test "a name that exists as an atom is an atom, and equals its text" do
    assert Spec.new(small_of(:fire)) == Spec.new(small_of("fire"))
    {:ok, policy} = Policy.init(small_of("fire"), seed: 1)
    assert [%{name: :fire}] = policy.spec.heads
    {:ok, session} = Session.open(policy)

    for choices <- [%{fire: [1]}, %{"fire" => 1}, [fire: 1], [{"fire", [1]}]] do
      assert {:ok, %{choices: %{fire: [1]}}} = Session.act(session, [0.5], choices: choices)
    end

    assert_raise ArgumentError, ~r/two heads have the same name/, fn ->
      Spec.new(
        embedding: {:vector, 1},
        heads: [{"fire", {:bernoulli, 1}}, {:fire, {:bernoulli, 1}}]
      )
    end

    twice = [{"fire", 1}, {:fire, 0}]
    assert {:error, %{kind: :mismatch}} = Session.act(session, [0.5], choices: twice)
  end

  defp small_of(name),
    do: [
      embedding: {:vector, 1},
      backbone: :mlp,
      hidden_sizes: [8],
      heads: [{name, {:bernoulli, 1}}]
    ]

  test "a Spec made before its names became atoms equals one made after" do
    name = name("late", "comer")
    before = Spec.new(small_of(name))
    assert [%{name: ^name}] = before.heads
    atom = String.to_atom(name)
    later = Spec.new(small_of(name))
    assert [%{name: ^atom}] = later.heads
    assert before != later
    assert Spec.new(before) == Spec.new(later)

    # A policy of the older Spec still works, and accepts the name as atom and as text.
    {:ok, policy} = Policy.init(before, seed: 1)
    {:ok, session} = Session.open(%{policy | spec: before})
    assert {:ok, %{choices: %{^name => [1]}}} = Session.act(session, [0.5], choices: %{atom => 1})
    {:ok, serving} = Serving.start_link(policy: %{policy | spec: before})
    {:ok, other} = Policy.init(later, seed: 2)
    assert Serving.swap(serving, other) == :ok
  end
end
