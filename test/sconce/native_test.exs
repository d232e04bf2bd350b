defmodule Sconce.NativeTest do
  use ExUnit.Case, async: true

  alias Sconce.{Error, Native}
  alias Sconce.Native.Call

  defmodule Point do
    defstruct x: 1, y: 2.5
  end

  describe "data across the border" do
    test "numbers, text, lists and maps return unchanged" do
      for term <- [nil, true, false, 0, -1, 2 ** 63, 1.5, "é", "", [], [1, [2]], %{a: %{b: 1}}] do
        assert Native.probe_echo(term) == {:ok, term}
      end
    end

    test "atoms become text, structs and maps with string keys become maps with atom keys" do
      assert Native.probe_echo(:gru) == {:ok, "gru"}
      assert Native.probe_echo(%Point{}) == {:ok, %{x: 1, y: 2.5}}
      assert Native.probe_echo(%{"hidden_size" => 3}) == {:ok, %{hidden_size: 3}}
    end

    test "a tagged pair becomes an enum's variant, any other tuple a list" do
      assert Native.probe_echo({:categorical, 17}) == {:ok, %{categorical: 17}}
      assert Native.probe_echo({{1, 2}, "a"}) == {:ok, [[1, 2], "a"]}
    end

    test "a term without a counterpart is an error that shows it" do
      deep = Enum.reduce(1..100, 0, fn _level, inner -> [inner] end)
      two_keys = %{:a => 1, "a" => 2}

      for term <- [self(), make_ref(), 2 ** 64, <<255>>, <<1::3>>, [1 | 2], deep, two_keys] do
        assert {:error, %Error{kind: :mismatch, details: %{what: "term", got: got}}} =
                 Native.probe_echo(term)

        assert got != ""
      end
    end
  end

  describe "an answer from a native thread" do
    test "comes once, after its events" do
      ref = probe("run")
      assert_receive {:sconce, ^ref, {:event, "begun"}}
      assert_receive {:sconce, ^ref, {:ok, 42}}
      refute_receive {:sconce, ^ref, _again}, 20
    end

    test "is a binary for bytes" do
      ref = probe("bytes")
      assert_receive {:sconce, ^ref, {:ok, <<1, 2, 3>>}}
    end

    test "is the error of failed work" do
      ref = probe("x.slp")
      assert_receive {:sconce, ^ref, {:error, %Error{kind: :not_found, op: :probe_reply}}}
    end

    test "is an error of kind :panic if the work or its thread panics" do
      ref = probe("panic")
      assert_receive {:sconce, ^ref, {:error, %Error{kind: :panic, details: %{message: "probe"}}}}
      ref = probe("die")
      assert_receive {:sconce, ^ref, {:error, %Error{kind: :panic}}}
    end

    test "comes even if the work was dropped before it ran" do
      ref = probe("drop")
      assert_receive {:sconce, ^ref, {:error, %Error{kind: :cancelled}}}
    end

    test "does not come if the call itself returned an error" do
      ref = make_ref()
      assert {:error, %Error{kind: :busy}} = Native.probe_reply(ref, "dismiss")
      refute_receive {:sconce, ^ref, _answer}, 20
    end
  end

  describe "events of long work" do
    test "all reach a process that acknowledges them" do
      {:ok, {most, _events}} = Call.run(&Native.probe_events(&1, 1, 1))
      tell = fn event -> send(self(), {:told, event}) end
      assert {:ok, _bounds} = Call.run(&Native.probe_events(&1, 0, most * 3), tell)
      for i <- 0..(most * 3 - 1), do: assert_received({:told, ["event", ^i]})
    end

    test "are bounded for a process that does not, and include the latest progress" do
      {:ok, {most, events}} = Call.run(&Native.probe_events(&1, 1, 1))
      ref = make_ref()
      {:ok, _task} = Native.probe_events(ref, most * 10, 3)
      assert_receive {:sconce, ^ref, {:ok, _bounds}}, 60_000
      told = told(ref)
      assert length(told) == most + 1 + 3 + 1
      {progress, rest} = Enum.split(told, most)
      assert progress == for(i <- 0..(most - 1), do: ["progress", i])
      last = most * 10 - 1

      assert [["progress", ^last], ["event", 0], ["event", 1], ["event", 2], ["again", ^last]] =
               rest

      {:ok, _task} = Native.probe_events(ref, 0, events * 2)
      assert_receive {:sconce, ^ref, {:ok, _bounds}}, 60_000
      assert length(told(ref)) == events
    end
  end

  defp told(ref) do
    receive do
      {:sconce, ^ref, {:event, event}} -> [event | told(ref)]
    after
      0 -> []
    end
  end

  defp probe(how) do
    ref = make_ref()
    assert Native.probe_reply(ref, how) == :ok
    ref
  end
end
