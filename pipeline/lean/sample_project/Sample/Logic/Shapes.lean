/-! # Every shape of a body -/

namespace Sample.Logic

theorem term_body (p q : Prop) (hp : p) (hq : q) : p ∧ q := ⟨hp, hq⟩

theorem where_body (p q : Prop) (hp : p) (hq : q) : p ∧ q where
  left := hp
  right := hq

theorem alternatives : ∀ n : Nat, n = 0 ∨ 0 < n
| 0 => Or.inl rfl
| _ + 1 => Or.inr (Nat.succ_pos _)

theorem with_default (n : Nat) (h : 0 < n := by decide) : n ≠ 0 := by
  omega

theorem let_in_statement : let x := 2; let y := x + 1; x < y := by
  decide

theorem have_in_statement (n : Nat) : have m := n + 1; n < m := by
  show n < n + 1
  omega

theorem match_in_statement (n : Nat) :
    match n with
    | 0 => n = 0
    | k + 1 => n = k + 1 := by
  cases n with
  | zero => rfl
  | succ k => rfl

theorem fun_in_statement : (fun
    | 0 => 1
    | n + 1 => n : Nat → Nat) 0 = 1 :=
  rfl

theorem unindented (p : Prop) (hp : p) : p := by
have h := hp

exact h

theorem calc_body (a b c : Nat) (h : a = b) (h' : b = c) : a = c := calc
  a = b := h
  _ = c := h' -- the last step

theorem trailing_where (n : Nat) : n < n + 1 :=
  helper n
where
  /-- The helper is part of the proof. -/
  helper (m : Nat) : m < m + 1 := Nat.lt_succ_self m

set_option linter.unusedVariables false in -- kept with the declaration after it
theorem with_option (p : Prop) (hp : p) (unused : Nat) : p := by
  set_option maxRecDepth 1000 in
  exact hp

open Nat in
/-- `open … in` stands outside of the declaration. -/
theorem with_open (n : Nat) : 0 < succ n :=
  open Nat in succ_pos n

section theorem on_one_line (p : Prop) : p → p := fun h => h end

theorem comment_before_body (p : Prop) (hp : p) -- the statement := ends here
    : p /- and := here -/ := -- the body follows
  hp

private theorem used_by_next (n : Nat) : n * 1 = n := Nat.mul_one n

protected theorem next (n : Nat) : n * 1 * 1 = n := by
  rw [used_by_next, used_by_next]

mutual
  theorem even_or_odd_left : ∀ n : Nat, n % 2 = 0 ∨ n % 2 = 1
    | 0 => Or.inl rfl
    | n + 1 => by have := even_or_odd_right n; omega

  theorem even_or_odd_right : ∀ n : Nat, n % 2 = 1 ∨ n % 2 = 0
    | 0 => Or.inr rfl
    | n + 1 => by have := even_or_odd_left n; omega
end

theorem halving : ∀ n : Nat, n / 2 ≤ n
  | 0 => Nat.le_refl 0
  | n + 1 => by
    have := halving (n / 2)
    omega
termination_by n => n
decreasing_by
  omega

theorem subtype_minus (x : {z : Int // -1 < z}) : 0 ≤ x.val := by
  have := x.property
  omega

instance tactic_instance : Inhabited Nat := by
  exact ⟨0⟩

example : 1 + 1 = 2 := by
  rfl

end Sample.Logic
