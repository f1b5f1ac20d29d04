"""Words to print: ordinary English, and made-up words that can be spoken; none of them offensive.

Every word belongs to one side of a split by hash: training draws only the words that are not held out, evaluation only
those that are, so no held-out word can have been seen.
"""

from __future__ import annotations

import codecs
import hashlib
import random
import re
from functools import lru_cache

_LISTED = """
able about above across action active actor add adult advice after again age agree ahead air alarm album alert alive
all allow almost alone along also always amber among amount ample anchor angle animal ankle answer apart apple apron
arch area arena arm armour army around arrive arrow art aside ask asleep atlas atom attic aunt author autumn average
avoid awake award aware axis baby back bacon badge bag bake baker balance ball balloon bamboo banana band bank banner
barn barrel basic basin basket bath battery bay beach bead beam bean bear beaver become bed bee beech before begin
behind bell belong below belt bench bend berry beside best better between beyond bicycle big bike bill bird biscuit
bitter blade blanket blend blind blink block bloom blossom board boat body boil bold bolt bone book boot border borrow
bottle bottom bow bowl box boy brain branch brass brave bread break breeze brick bridge brief bright bring broad broom
brother brush bubble bucket budget build bulb bundle burn bus bush busy butter button buyer cabin cabinet cable cactus
cake calendar call calm camel camera camp canal candle canoe canvas cap capital captain car carbon card care cargo
carpet carrot carry cart case castle cat catch cave cedar ceiling cellar cement census centre cereal chain chair chalk
chance change chapter charge charm chart cheap check cheer cheese cherry chess chest chicken chief child chimney
choice choir choose circle circus city claim clay clean clear clerk clever cliff climb clock close cloth cloud clover
coach coal coast coat cobalt cocoa coconut code coffee coin cold collar colony column comb come comet comfort common
compass concert copper coral cord cork corn corner cost cottage cotton couch count country couple courage course
court cousin cover cow crab cradle craft crane crate cream create creek crew cricket crisp crop cross crowd crown
crystal cube cup curb cure curl current curtain curve cushion custom cycle dairy daisy damp dance danger dark data
daughter dawn day deal dear debate decade decide deck deep deer degree delay deliver delta dense depend depot depth
desert design desk detail device dial diamond diary digital dinner direct dish distance dive divide doctor dog dollar
dolphin domain donkey door double dough dove down dozen draft dragon drama draw dream dress drift drill drink drive
drop drum dry duck during dust duty eager eagle early earn earth ease east easy echo edge editor effort egg eight
elbow elder elect elegant elevator elm empty enamel end energy engine enjoy enough enter entry envelope equal error
escape estate even evening event ever every exact exam example exit expert extra eye fabric face fact factory fair
faith falcon fall family famous fancy farm fashion fast father favour feather feature feed feel fence fern ferry
festival fiction field fifth fig figure file fill film filter final find fine finger finish fire firm first fish five
fix flag flame flat flavour fleet flight float flock flood floor flour flower flute fly foam focus fog fold folk
follow food foot forest forget fork form fort forward fossil found four fox frame free fresh friend frog front frost
fruit fuel full fun funnel future gadget gain galaxy gallery game garage garden garlic gas gate gather gear gem
general gentle ghost giant gift ginger give glacier glad glass globe glove glow glue goal goat gold golden good goose
grain grand granite grant grape graph grass gravel great green grid grill grocery ground group grow guard guess guest
guide guitar gulf habit half hall hammer hand handle happy harbour hard harmony harp harvest hat hazel head health
heart heat heavy hedge height helmet help herb herd hero heron hidden high hill hint history hobby hold hole holiday
hollow home honest honey hook hope horizon horn horse hospital host hotel hour house human humble hundred hurry ice
icon idea image import inch include index indoor inform ink inn inner input inside instead iron island item ivory ivy
jacket jaguar jam jar jasmine jazz jelly jewel job join joke journal journey joy judge juice jump jungle junior jury
just kayak keen keep kernel kettle key kind king kingdom kitchen kite kitten knee knife knock knot know label ladder
lake lamb lamp land lane lantern large laser last late laugh laundry lava lawn layer lead leaf league learn leather
leave ledge left legend lemon lend lens lentil leopard lesson letter level lever liberty library lid life lift light
lily lime limit line linen link lion list listen little live lizard load loaf lobby local lock lodge logic long look
loop lotus loud lounge love low loyal lucky lumber lunar lunch lynx machine magnet main maker mammal manage mango manor
many map maple marble march margin marine mark market mask master match matter maximum maybe meadow meal measure medal
medium meet melody melon member memory mend menu merit metal meter method middle mild mile milk mill mimic mineral
minimum minor mint minute mirror mist mix mobile model modern modest moment monday money monitor monkey month moon
moral more morning mosaic moss motion motor mountain mouse mouth move much mud muscle museum music mustard myth nail
name napkin narrow nation native nature navy near neat neck need needle neighbour nephew nerve nest net never new news
next nice nickel night nimble nine noble node noise noon normal north nose note notice novel number nurse nut oak oasis
oat object ocean october offer office often oil old olive onion only open opera option orange orbit orchard order
organ origin orchid other otter outer oval oven over owl owner oxygen oyster pack paddle page paint pair palace palm
panel panther paper parade parcel parent park parrot part party pass past pasta patch path patient pattern pause pave
peace peach peak peanut pear pearl pebble pedal pelican pen pencil people pepper perfect period permit person petal
phone photo piano picnic picture piece pier pigeon pillow pilot pine pink pioneer pipe pixel pizza place plain plan
plane planet plant plate play plaza plenty plum pocket poem poet point polar pole polish pond pony pool poplar popular
porch port portrait position postal pot potato pottery powder power praise present press price pride prime print
prize problem process produce profit program project proof proper protect proud public pull pulse pump pumpkin pupil
puppet purple purse push puzzle pyramid quail quality quarter quartz queen quest question queue quick quiet quilt
quote rabbit raccoon race radar radio raft rail rain raise ranch range rapid rare raven reach read ready real reason
recent recipe record reef reflect region regular relax relay rely remain remember remote rent repair repeat reply
report rescue reserve resort rest result return review reward rhythm ribbon rice rich ride ridge right ring ripple
rise river road roast robin robot rocket roof room root rope rose rough round route row royal rubber ruby rudder rug
rule run rural saddle safe sail salad salmon salt same sample sand satin saturday sauce save scale scarf scene school
science score scout screen script sea seal search season seat second secret section seed select senior sense sentence
series serve seven shade shadow shape share shark sharp sheep sheet shelf shell shelter shield shift shine ship shirt
shoe shop shore short shoulder show shower side sign signal silent silk silver simple sing singer single sister site
six size skate sketch skill skirt sky slate sleep sleeve slice slide slope slow small smart smile smoke smooth snail
snow soap soccer social sock sofa soft soil solar solid solve song sonic soon sort sound soup source south space spark
speak special speed spell spend sphere spice spider spin spiral spoon sport spot spray spring spruce square squirrel
stable stadium stage stair stamp stand star start state station statue stay steady steam steel stem step stereo stick
still stone stop store storm story stove straight strand straw stream street strength string strong student studio
study sturdy style subject sudden sugar suit summer summit sun sunday sunny super supper supply support sure surf
surface swan sweater sweet swift swim swing switch symbol system table tablet tail tailor take talent talk tall target
task taste tea teach team teapot temple ten tender tennis tent term test thank theory thick thing third thousand thread
three throne thunder thursday ticket tide tidy tiger tile timber time tiny tip tired toast today together token tomato
tone tool tooth top topic torch total touch tour towel tower town toy track trade traffic trail train travel tray
treasure tree trend trial tribe trick trim trip triumph trolley trophy truck true trumpet trunk trust truth tuesday
tulip tune tunnel turbine turn turtle twelve twenty twin twist type umbrella uncle under uniform union unique unit
universe until update upper urban useful usual vacant valley value valve van vanilla vapour vase vault vector velvet
vendor venture verse very vessel victory video view village vine violet violin visit visitor vivid voice volcano volume
voyage wagon walk wall walnut waltz warm wash watch water wave wax way wealth weather weave wedding week weekend weight
welcome well west whale wheat wheel whisper whistle white whole wide width wild willow wind window wing winner winter
wire wisdom wise wish wolf wonder wood wool word work world worth wrap wren wrist write yard yarn year yellow yes yet
young zebra zero zigzag zinc zone
"""


def split_words(text: str) -> tuple[str, ...]:
    """The words of a text, in order."""
    return tuple(text.split())


#: Letter groups of made-up words, the usual ones repeated so that letters come about as often as in English.
_ONSETS = split_words(
    "b c d f g h j k l m n p r s t v w b c d f l m n p r s t r s t l n d m "
    "bl br ch cl cr dr fl fr gl gr kn ph pl pr qu sc sh sk sl sm sn sp st str sw th tr tw wh x y z"
)
_NUCLEI = split_words("a e i o u a e i o e a i e o ai au ea ee ei ie oa oi oo ou ua y")
_CODAS = split_words(
    "- - - - - - b ck d g l m n n p r r s s t t x ct ft ld ll lm lt mp nd ng nk nt rd rk rm rn rt ss st th tz v"
)

#: Stems (rot13, so that the repository shows none of them) that no generated text may contain.
_BLOCKED = split_words(
    "shpx shx shd shp fuvg fuvf fuvm phag xhag pbpx xbpx qvpx qvp qvx cvff cvfu nff nefr nahf nany gvg gvgf obbo "
    "phz frk frkk frz chff chf jnax jnat fyhg juber jubr ubber uber unir ubzb snt sntt avt avtt arteb fcvp fcvx "
    "tbbx xvxr xlxr puvax ergneq encr enc anmv uvgyre urvy cbea cbeab cravf crav cravs intv intva pyvg gheq penc "
    "perrc cbb cbbc jvmm wvmm wvm zrgu urebva qehax qnza uryy xvyy qvr qrnq zheqre fhvpvqr wrj enturnq jbt cnxv "
    "pbba qnt qntb wnc tlc genaal gena qlxr yrfob dhrre obare ubeal ubeavr erpghz fpebg fpng fcrez frzra zbyrfg "
    "crqb cnrqb vaprfg onfgneq ovgpu ovgp ohttre obyybp gjng gvgg ahqr ahq cebfgv uhfgyr xxx vfvf wvunq greebe "
    "fynir ylapu ncr zbeba vqvbg fghcvq vzorpvyr yrcre pbca cubarfrk"
)


@lru_cache(maxsize=1)
def blocked_stems() -> frozenset[str]:
    """Stems that may appear in no generated text, in lower case."""
    return frozenset(codecs.decode(stem, "rot13") for stem in _BLOCKED)


@lru_cache(maxsize=1)
def _blocked_pattern() -> re.Pattern[str]:
    return re.compile("|".join(sorted(map(re.escape, blocked_stems()))))


def is_clean(text: str) -> bool:
    """Whether generated ``text`` holds no blocked stem; digits and signs between letters are overlooked."""
    return _blocked_pattern().search("".join(c for c in text.lower() if c.isalpha())) is None


def is_held_out(word: str) -> bool:
    """Whether this word is kept for evaluation (one word in sixteen, by hash of its lower-case letters)."""
    return hashlib.sha256(word.lower().encode()).digest()[0] % 16 == 7


#: Held out by their hash, but seen in training as goods, labels, places or in questions: neither side draws them.
_SEEN_ANYWAY = split_words("captain cheese coffee drill form host mouse part pass pilot right under")

LISTED: tuple[str, ...] = tuple(dict.fromkeys(split_words(_LISTED)))
TRAINING_WORDS: tuple[str, ...] = tuple(w for w in LISTED if not is_held_out(w))
HELD_OUT_WORDS: tuple[str, ...] = tuple(w for w in LISTED if is_held_out(w) and w not in _SEEN_ANYWAY)


def _made_up(rng: random.Random) -> str:
    syllables = rng.choices((1, 2, 3, 4), (0.22, 0.46, 0.25, 0.07))[0]
    parts = []
    for number in range(syllables):
        onset = "" if number == 0 and rng.random() < 0.14 else rng.choice(_ONSETS)
        coda = rng.choice(_CODAS) if number == syllables - 1 or rng.random() < 0.3 else "-"
        parts.append(onset + rng.choice(_NUCLEI) + ("" if coda == "-" else coda))
    return "".join(parts)


def made_up_word(rng: random.Random, held_out: bool = False) -> str:
    """A clean word of 3 to 12 letters that can be spoken and is on the asked side of the split."""
    while True:
        word = _made_up(rng)
        if 3 <= len(word) <= 12 and is_held_out(word) == held_out and is_clean(word):
            return word


def word(rng: random.Random, held_out: bool = False) -> str:
    """A listed or a made-up word (about half of each) of the asked side of the split, in lower case."""
    if rng.random() < 0.5:
        return rng.choice(HELD_OUT_WORDS if held_out else TRAINING_WORDS)
    return made_up_word(rng, held_out)
