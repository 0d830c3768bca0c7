/-! Proofs whose end is hard to see. Parsed by Lean, never elaborated. -/
namespace Proofs

/- theorem commented : 1 = 1 := rfl -/
-- theorem commented : 1 = 1 := rfl
/- /- nested -/ theorem commented : 1 = 1 := rfl -/
/-! theorem commented : 1 = 1 := rfl -/
def text := "
theorem in_a_string : 1 = 1 := rfl
"
def raw := r##"
theorem "# in_a_string : 1 = 1 := rfl
"##

theorem first : 1 = 1 := rfl -- after the proof
theorem second : 1 = 1 := rfl /- after the proof -/
/- still after it -/
/-- theorem of_the_next : 1 = 1 := rfl -/
@[simp] theorem third : 1 = 1 := rfl /-- same line -/ theorem fourth : 1 = 1 := rfl
theorem fifth : 1 = 1 := rfl @[simp] theorem sixth : 1 = 1 := rfl theorem seventh : 1 = 1 := by rfl
section theorem eighth : 1 = 1 := (rfl)end
theorem unindented (p q : Prop) (hp : p) (hq : q) : p ∧ q := by
constructor
exact hp

-- a comment in column 0
exact hq
theorem unindented_term : 1 = 1 :=
id
rfl
theorem comments_inside : 1 = 1 := by
  -- first
  have h : 1 = 1 := by
    /- second -/
    rfl
  -- third

  exact h
  -- last, not part of it

theorem calculation (a b c : Nat) (h : a = b) (h' : b = c) : a = c := calc
  a = b := h
  _ = c := h' -- the end
theorem cases (n : Nat) : n = n := by
  cases n with
  | zero => rfl
  | succ n => rfl
theorem induct (n : Nat) : 0 + n = n := by
  induction n with
  | zero => rfl
  | succ n ih =>
    show 0 + n + 1 = n + 1
    rw [ih]
theorem terminating : ∀ n : Nat, n = n
  | 0 => rfl
  | n + 1 => by
    have := terminating n
    rfl
termination_by n => n
decreasing_by
  simp_wf
theorem helped (n : Nat) : n = n := helper n
where
  /-- The helper's own comment. -/
  @[simp] helper (n : Nat) : n = n := rfl
theorem helped_twice (n : Nat) : n = n := by
  exact one n
  where
    one (n : Nat) : n = n := two n
    two (n : Nat) : n = n := rfl
theorem opened : 1 = 1 := by
  open Nat in
  set_option maxRecDepth 100 in
  rfl
theorem opened_term : 1 = 1 := open Nat in set_option maxRecDepth 100 in rfl
open Nat in
/-- A comment between. -/
set_option maxRecDepth 100 in -- and another
@[simp]
theorem outer : 1 = 1 := rfl
variable (n : Nat) in
theorem outer_variable : n = n := rfl
attribute [local simp] outer in
protected theorem outer_attribute : 1 = 1 := by simp
mutual
  theorem even : ∀ n : Nat, n = n
    | 0 => rfl
    | n + 1 => by have := odd n; rfl
  private theorem odd : ∀ n : Nat, n = n
    | 0 => rfl
    | n + 1 => by have := even n; rfl
end
@[simp,
  inherit_doc first]
private theorem attributes_over_lines : 1 = 1 := rfl
nonrec theorem modified : 1 = 1 := rfl
theorem braces : 1 = 1 := by { skip; rfl }
theorem semicolons : 1 = 1 := by skip; skip; rfl
theorem bullets (p q : Prop) (hp : p) (hq : q) : p ∧ q := by
  constructor
  · exact hp
  · exact hq
theorem angle : ∃ n : Nat, n = n := ⟨0, rfl⟩
theorem keyword_names (x : Nat × Nat) : x.fst = x.1 := by
  let «theorem» := 1
  let my_theorem := «theorem»
  let lemma_like := my_theorem
  rfl
macro "declare_it " n:ident : command => `(theorem $n : 1 = 1 := rfl)
macro_rules
  | `(command| theorem $n:declId : $t := $p) => `(
theorem $n : $t := by
  exact $p
)
theorem after_macro : 1 = 1 := rfl
#check after_macro
theorem after_check : 1 = 1 := rfl
#eval "theorem evaluated : 1 = 1 := rfl"
theorem after_eval : 1 = 1 := rfl
example : 1 = 1 := rfl
instance : Inhabited Nat := ⟨0⟩
theorem after_instance : 1 = 1 := rfl
deriving instance Repr for Except
theorem dependent (n : Nat) (h : n = 1 := by exact rfl) : n = 1 := by
  subst h
  rfl
theorem tactic_strings : 1 = 1 := by
  have : "by theorem x : P := h" = "by theorem x : P := h" := rfl
  rfl
theorem last : 1 = 1 := rfl
end Proofs
#exit
theorem after_exit : 1 = 1 := rfl
