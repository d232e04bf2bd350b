defmodule Sconce.NxTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  @app Path.expand("../host_nx", __DIR__)

  # The libraries of a folder are compiled, which takes a minute.
  @tag :nx
  @tag timeout: 1_200_000
  test "the tests of an app with Nx and Axon pass, and Sconce compiles beside them without a warning" do
    own = [{"MIX_BUILD_PATH", tmp_dir!("host_nx")}, {"MIX_ENV", "test"}, {"HEX_OFFLINE", "1"}]

    kept =
      for name <- ~w(SCONCE_NX SCONCE_TARGET_DIR SCONCE_NATIVE_PATH),
          value = System.get_env(name),
          do: {name, value}

    assert {output, 0} = mix(["test"], @app, kept ++ own)
    assert [_, tests] = Regex.run(~r/(\d+) tests, 0 failures/, output)
    assert String.to_integer(tests) > 15
    # A warning names the file and the line.
    refute output =~ ~r{^ *(└─ )?lib/sconce/.*:\d+}m
  end

  describe "without Nx" do
    setup do
      refute Code.ensure_loaded?(Nx)
      spec = [embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}], hidden_size: 8]
      {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      {:ok, session} = Sconce.Session.open(policy)
      {:ok, policy: policy, session: session}
    end

    test "everything that makes a tensor says so", %{policy: policy, session: session} do
      frame = [0.5, 1.0]

      for {call, what} <- [
            {fn -> Sconce.Nx.serving(policy) end, "serving"},
            {fn -> Sconce.Nx.batches("corpus") end, "batches"},
            {fn -> Sconce.Policy.forward(policy, [[frame]], as: :nx) end, "option :as"},
            {fn -> Sconce.Policy.step(policy, [frame], as: :nx) end, "option :as"},
            {fn -> Sconce.Policy.weights(policy, as: :nx) end, "option :as"},
            {fn -> Sconce.Embedding.embed({:vector, 2}, frame, as: :nx) end, "option :as"},
            {fn -> Sconce.Session.act(session, frame, as: :nx) end, "option :as"},
            {fn -> Sconce.Session.act_many([{session, frame}], as: :nx) end, "option :as"}
          ] do
        assert_raise ArgumentError, "#{what}: Nx is not loaded", call
      end
    end

    test "a tensor from elsewhere is refused", %{policy: policy, session: session} do
      tensor = %{__struct__: Nx.Tensor, type: {:f, 32}, shape: {1, 2}, names: [nil, nil]}

      for call <- [
            fn -> Sconce.Policy.forward(policy, tensor) end,
            fn -> Sconce.Session.act(session, tensor) end,
            fn -> Sconce.Session.act_many({[session], tensor}) end,
            fn -> Sconce.Embedding.embed({:vector, 2}, tensor) end,
            fn -> Sconce.Policy.put_weights(policy, %{"heads.go_logits.bias" => tensor}) end
          ] do
        assert_raise ArgumentError, ~r/Nx is not loaded/, call
      end
    end
  end
end
